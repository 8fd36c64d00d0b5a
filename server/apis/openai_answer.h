// Answers to OpenAI's completions, whole or as a stream of chunks, and the parts of them that chat
// completions share.
#pragma once

#include <memory>
#include <string>

#include "model/tokenizer.h"
#include "server/apis/generation_call.h"
#include "server/apis/openai_fields.h"
#include "server/http/json.h"

namespace ovq::server {

// Appends {"token", "logprob", "bytes", "top_logprobs"} for each token of the chunk.
void AppendChatLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                        Json& list);
// Counts the tokens of an answer, over all its choices.
struct AnswerUsage {
  void Begin(const engine::Started& started) {
    prompt_tokens += started.prompt_tokens;
    cached_tokens += started.cached_tokens;
  }
  void Finish(const engine::Finished& finished) {
    reasoning_tokens += finished.usage.reasoning_tokens;
  }
  Json ToJson() const;

  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
};

// "stop" or "length"; null for other ends.
Json FinishName(engine::FinishReason reason);
// The stop text or the token id that ended it, or null.
Json StopJson(const engine::Finished& finished);

// Writes what every chunk of a stream has, and every whole answer.
class AnswerChunks {
 public:
  // object: of a whole answer; a chunk's is "OBJECT.chunk" where it begins with "chat".
  AnswerChunks(const char* id_prefix, const std::string& object, const std::string& model,
               int64_t created, const OpenAiRequest& request);
  // Appends a chunk with one choice, whose members are given without the index.
  void Append(int index, const Json& members, const AnswerUsage& usage, std::string& out) const;
  void End(const absl::Status& status, const AnswerUsage& usage, std::string& out) const;
  void Whole(Json choices, const AnswerUsage& usage, std::string& out) const;

 private:
  const OpenAiApi api_;
  const bool include_usage_, continuous_usage_;
  Json base_;         // members of every form of the answer
  std::string head_;  // beginning of every chunk, up to its choices
};

// An answer to a completion. The tokenizer may be null, and outlives the writer. created: seconds
// since 1970.
std::unique_ptr<AnswerWriter> MakeCompletionAnswer(OpenAiRequest request, const std::string& model,
                                                   const model::Tokenizer* tokenizer,
                                                   int64_t created);

}  // namespace ovq::server
