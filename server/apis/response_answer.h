// Answers to OpenAI's /v1/responses, whole or as a stream of events.
#pragma once

#include <string>
#include <utility>

#include "model/tokenizer.h"
#include "server/apis/generation_call.h"
#include "server/apis/response_request.h"

namespace ovq::server {

// The output's items are reasoning, messages and function calls, in the order of the answer.
class ResponseAnswer final : public AnswerWriter {
 public:
  // id: of the response. The tokenizer may be null, and outlives it. created: seconds since 1970.
  ResponseAnswer(const ResponseRequest& request, const std::string& id, const std::string& model,
                 const model::Tokenizer* tokenizer, int64_t created);

  bool streams() const override { return streams_; }
  bool keeps() const override { return true; }  // the last event has the whole response
  void Add(const engine::StreamEvent& event, std::string& out) override;
  void End(const absl::Status& status, std::string& out) override;
  // The response so far: complete once Finished was added.
  Json Response() const;

 private:
  void AddPart(const answers::AnswerPart& part, std::string& out);
  // Names the function of the item that has begun, as its tool is named in the request.
  void SetFunction(const std::string& name);
  // Begins an item of this type, "message", "reasoning" or "function_call".
  void BeginItem(const char* type, std::string& out);
  void EndItem(std::string& out);  // if one is open
  void Append(const char* type, Json event, std::string& out);
  // Appends an event about the open item, or what ("text.delta", "part.added") happens to its part.
  void AppendOfItem(const char* type, Json event, std::string& out);
  void AppendOfPart(const std::string& what, Json event, std::string& out);
  Json& Part() { return output_.back()[open_ == "reasoning" ? reasoning_list_ : "content"][0]; }

  const bool streams_;
  const model::Tokenizer* const tokenizer_;
  const std::string session_id_;      // in the ids of items
  const char* const reasoning_list_;  // of an item: "content" or "summary"
  const bool carries_reasoning_;
  Json head_;  // the fields that do not change
  Json output_ = Json::array();
  Json logprobs_ = Json::array();  // of tokens whose text is still held back
  std::string open_;               // the type of the item that is still written; empty: none
  const char* status_ = "in_progress";
  Json usage_, state_;
  int64_t position_ = 0;  // of the session before this response
  int64_t cached_ = 0;
  int64_t sequence_ = 0;  // number of the next event
};

}  // namespace ovq::server
