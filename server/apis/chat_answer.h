// Answers to OpenAI's chat completions, whole or as a stream of chunks.
#pragma once

#include <memory>
#include <string>

#include "server/apis/openai_answer.h"

namespace ovq::server {

// The id of a call to a tool, which the tool's result refers to: nine letters and digits, as some
// chat templates demand.
std::string NewCallId();
// The tokenizer may be null, and outlives the writer. created: seconds since 1970.
std::unique_ptr<AnswerWriter> MakeChatAnswer(OpenAiRequest request, const std::string& model,
                                             const model::Tokenizer* tokenizer, int64_t created);

}  // namespace ovq::server
