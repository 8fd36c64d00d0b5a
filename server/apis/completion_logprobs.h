// Log-probabilities in the form of the completions API.
#pragma once

#include "model/token_text.h"
#include "server/engine/common/engine_api.h"
#include "server/http/json.h"

namespace ovq::server {

// Appends the chunk's tokens to the parallel lists of `lists`, which is null before the first:
// tokens, token_logprobs, top_logprobs, text_offset. A log-probability that is NaN becomes null, as
// for a text's first token. offsets: those of the choice's text.
void AppendCompletionLogprobs(const engine::TokenChunk& chunk, const model::Tokenizer* tokenizer,
                              model::TextOffsets& offsets, Json& lists);

}  // namespace ovq::server
