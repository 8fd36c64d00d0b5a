// What a request says about drawing its tokens, and what its tokens so far add to that. Random
// numbers are a function of (seed, position), so that a request's tokens never depend on what else
// the server does.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/ops/sample.h"

namespace ovq {

// Not checked here: whoever takes a request checks it once.
struct SamplingParams {
  float temperature = 1.0f;         // at least 0; 0 = greedy
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float typical_p = 1.0f;           // (0, 1]
  float repetition_penalty = 1.0f;  // above 0; prompt and generated tokens: logit / r or * r
  float presence_penalty = 0.0f;    // generated tokens
  float frequency_penalty = 0.0f;   // generated tokens, times the count
  uint64_t seed = 0;                // the server draws one when the request has none
  std::unordered_map<int32_t, float> logit_bias{};  // by token id, within the vocabulary
};

struct TokenLogprob {
  int32_t token_id;
  float logprob;
};

struct Sampled {
  // False: a logit of the row is infinite or no number, and the rest means nothing.
  bool finite = true;
  int32_t token_id = 0;
  float logprob = 0;              // ln softmax(logits) of the raw model logits, before any change
  std::vector<TokenLogprob> top;  // the raw distribution's best, descending, ties by lower id
};

// The lists of a draw that counts drafted tokens, where they differ from the sampler's own.
struct DraftedCounts {
  std::vector<int32_t> seen;
  std::vector<TokenCount> generated;
};

// How one generated sequence draws: its parameters, and the tokens that penalties count. Engine
// thread only. What the parameters do, and in which order: RowDraw in kernels/ops/sample.h.
class Sampler {
 public:
  Sampler(SamplingParams params, int64_t vocab_size);
  // Counts tokens of the prompt (repetition penalty).
  void ObservePrompt(std::span<const int32_t> tokens);
  // A draw from a row of logits. position: of the token to be drawn. banned: token ids that must
  // not be drawn (end of sequence under ignore_eos), may be empty. It points into the sampler and
  // to `banned`: good until the next Observe.
  RowDraw Describe(int64_t row, int64_t position, std::span<const int32_t> banned) const;
  // The draw that Describe would give after an Observe of each of the drafted tokens. The sampler
  // stays as it is; the draw points into `counts` too.
  RowDraw DescribeAfter(std::span<const int32_t> drafted, int64_t row, int64_t position,
                        std::span<const int32_t> banned, DraftedCounts& counts) const;
  void Observe(int32_t token);  // counts it as generated

 private:
  void MarkSeen(int32_t id);
  bool counts_generated() const {
    return params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
  }

  DrawParams params_;
  std::vector<TokenBias> bias_;
  std::vector<TokenCount> generated_;  // only with a presence or frequency penalty
  std::unordered_map<int32_t, size_t> generated_index_;  // in generated_
  std::vector<bool> is_seen_;                            // [vocab], only with a repetition penalty
  std::vector<int32_t> seen_;                            // the set bits of is_seen_
};

}  // namespace ovq
