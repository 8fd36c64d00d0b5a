// A decoder's forward pass on one page: read it before the decoder (model/language_model.h) and its
// mixers (kernels/mixers), which compute the same numbers fast, token by token and for many
// sessions at once. It shares no code with them but the reader of weight files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ovq::model::plain {

// Logits of every token, [n_tokens, vocab_size], computed in float64. The folder holds a native
// model (docs/model-format.md) of sliding_attention, full_attention and ovq_attention layers,
// without optional fields. max_centroids: of the session; 0 means the model's own.
std::vector<double> Forward(const std::string& folder, std::span<const int32_t> tokens,
                            int64_t max_centroids = 0);

}  // namespace ovq::model::plain
