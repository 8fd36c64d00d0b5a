// Answers to OpenAI's completions and chat completions, whole or as a stream of chunks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "server/http/generation_call.h"
#include "server/http/openai_request.h"

namespace ovq::server {

// The text of one token, as OpenAI's logprobs show it.
std::string TokenText(const model::Tokenizer* tokenizer, int32_t id);
// Appends {"token", "logprob", "bytes", "top_logprobs"} for each token of the chunk.
void AppendChatLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                        nlohmann::json& list);
// "stop" or "length"; null for other ends.
nlohmann::json FinishName(engine::FinishReason reason);

class OpenAiAnswer final : public AnswerWriter {
 public:
  // The tokenizer may be null, and outlives it. created: seconds since 1970.
  OpenAiAnswer(OpenAiRequest request, std::string model, const model::Tokenizer* tokenizer,
               int64_t created);

  bool streams() const override { return request_.stream; }
  void Add(const engine::StreamEvent& event, std::string& out) override;
  void End(const absl::Status& status, std::string& out) override;

 private:
  struct Choice {
    std::string text;
    nlohmann::json logprobs;  // null if not asked for
    nlohmann::json finish;    // null until the end
    nlohmann::json stop;      // the stop text or token id that ended it, or null
    int64_t text_bytes = 0;   // bytes so far, for text_offset
  };

  bool chat() const { return request_.api == OpenAiApi::kChat; }
  void AddLogprobs(const engine::TokenChunk& chunk, Choice& choice, nlohmann::json& to) const;
  nlohmann::json Usage() const;
  // Appends a chunk with one choice; `members`: its members without the index.
  void AppendChunk(int index, const std::string& members, std::string& out) const;
  nlohmann::json Whole() const;

  const OpenAiRequest request_;
  const model::Tokenizer* const tokenizer_;
  const std::string id_, model_;
  const int64_t created_;
  const std::string head_;  // beginning of every chunk, up to its choices
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
};

}  // namespace ovq::server
