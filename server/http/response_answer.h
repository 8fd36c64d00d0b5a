// Answers to OpenAI's /v1/responses, whole or as a stream of events.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer.h"
#include "server/http/generation_call.h"
#include "server/http/openai_request.h"

namespace ovq::server {

class ResponseAnswer final : public AnswerWriter {
 public:
  // id: of the response. The tokenizer may be null, and outlives it.
  ResponseAnswer(const ResponseRequest& request, std::string id, const std::string& model,
                 const model::Tokenizer* tokenizer, int64_t created);

  bool streams() const override { return streams_; }
  void Add(const engine::StreamEvent& event, std::string& out) override;
  void End(const absl::Status& status, std::string& out) override;
  // The response so far: complete once Finished was added.
  nlohmann::json Response() const;

 private:
  void Append(const char* type, nlohmann::json event, std::string& out);
  void AppendBegin(std::string& out);
  void AppendEnd(std::string& out);
  nlohmann::json Part() const;  // the text part
  nlohmann::json Item() const;  // the message with the text part

  const bool streams_;
  const model::Tokenizer* const tokenizer_;
  const std::string id_, item_id_;
  nlohmann::json head_;  // the fields that do not change
  std::string text_;
  nlohmann::json logprobs_ = nlohmann::json::array();
  const char* status_ = "in_progress";
  nlohmann::json usage_, state_;
  int64_t position_ = 0;  // of the session before this response
  int64_t cached_ = 0;
  int64_t sequence_ = 0;  // number of the next event
};

}  // namespace ovq::server
