// Answers to OpenAI's completions and chat completions, whole or as a stream of chunks.
#pragma once

#include <memory>
#include <string>

#include "model/tokenizer.h"
#include "server/http/generation_call.h"
#include "server/http/json.h"
#include "server/http/openai_request.h"

namespace ovq::server {

// The text of one token, as OpenAI's logprobs show it.
std::string TokenText(const model::Tokenizer* tokenizer, int32_t id);
// Appends {"token", "logprob", "bytes", "top_logprobs"} for each token of the chunk.
void AppendChatLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                        Json& list);
// The tokenizer may be null, and outlives the writer. created: seconds since 1970.
std::unique_ptr<AnswerWriter> MakeOpenAiAnswer(OpenAiRequest request, const std::string& model,
                                               const model::Tokenizer* tokenizer, int64_t created);

}  // namespace ovq::server
