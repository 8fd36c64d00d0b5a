// Answers to OpenAI's completions and chat completions, whole or as a stream of chunks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "server/http/answer_writer.h"
#include "server/http/openai_request.h"

namespace ovq {

// A token as their logprobs show it: its own text.
std::string TokenText(const Tokenizer* tokenizer, int32_t id);
// Of a chunk's tokens, {"token", "logprob", "bytes", "top_logprobs"} each.
void AppendChatLogprobs(const TokenChunk& chunk, const Tokenizer* tokenizer, nlohmann::json& list);
// "stop", "length"; null where it ended otherwise.
nlohmann::json FinishName(FinishReason reason);

class OpenAiAnswer final : public AnswerWriter {
 public:
  // The tokenizer may be null, and outlives it. created: seconds since 1970.
  OpenAiAnswer(OpenAiRequest request, std::string model, const Tokenizer* tokenizer,
               int64_t created);

  bool streams() const override { return request_.stream; }
  void Add(const StreamEvent& event, std::string& out) override;
  void End(const absl::Status& status, std::string& out) override;

 private:
  struct Choice {
    std::string text;
    nlohmann::json logprobs;  // null without
    nlohmann::json finish;    // null until then
    nlohmann::json stop;      // what ended it: a text, a token id, or null
    int64_t text_bytes = 0;   // of the text so far, for text_offset
  };

  bool chat() const { return request_.api == OpenAiApi::kChat; }
  void AddLogprobs(const TokenChunk& chunk, Choice& choice, nlohmann::json& to) const;
  nlohmann::json Usage() const;
  // A chunk with one choice, whose members but the index are given.
  void AppendChunk(int index, const std::string& members, std::string& out) const;
  nlohmann::json Whole() const;

  const OpenAiRequest request_;
  const Tokenizer* const tokenizer_;
  const std::string id_, model_;
  const int64_t created_;
  const std::string head_;  // of every chunk, up to its choices
  std::vector<Choice> choices_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
};

}  // namespace ovq
