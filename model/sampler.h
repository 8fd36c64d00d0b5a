// Sampler: the sampling parameters of one generated sequence and the token counts of its penalties.
// Random numbers are a function of (seed, position), so a request's tokens never depend on what
// else the server does.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/ops/sample.h"

namespace ovq::model {

// The caller validates them: temperature >= 0; top_p and typical_p in (0, 1]; min_p in [0, 1];
// repetition_penalty > 0, of prompt and generated tokens; the other penalties are of generated
// tokens. The server draws a seed if the request has none.
struct SamplingParams : kernels::DrawParams {
  std::unordered_map<int32_t, float> logit_bias{};  // by token id, below vocab_size
};

struct TokenLogprob {
  int32_t token_id;
  float logprob;
};

struct Sampled {
  // False if a logit is infinite or NaN; the other fields are then meaningless.
  bool finite = true;
  int32_t token_id = 0;
  // ln softmax of the raw logits of the allowed tokens, before any parameter is applied.
  float logprob = 0;
  std::vector<TokenLogprob> top;  // most likely allowed ones, descending, ties by lower id
};

// The lists of a draw that counts drafted tokens, where they differ from the sampler's own.
struct DraftedCounts {
  std::vector<int32_t> seen;
  std::vector<kernels::TokenCount> generated;
};

// Sampling state of one generated sequence. Engine thread only. RowDraw in kernels/ops/sample.h
// defines the effect and order of the parameters.
class Sampler {
 public:
  Sampler(const SamplingParams& params, int64_t vocab_size);
  // Counts tokens of the prompt, for the repetition penalty.
  void ObservePrompt(std::span<const int32_t> tokens);
  // Describes a draw from row `row` of the logits, after an Observe of each drafted token, though
  // the sampler does not change. position: of the token to draw. banned: token ids that must not be
  // drawn (end of sequence under ignore_eos), may be empty. The result points into the sampler,
  // `banned` and `counts`, which is needed with drafted tokens; it is valid until the next Observe.
  kernels::RowDraw Describe(int64_t row, int64_t position, std::span<const int32_t> banned,
                            std::span<const int32_t> drafted = {},
                            DraftedCounts* counts = nullptr) const;
  void Observe(int32_t token);  // counts a generated token

 private:
  void MarkSeen(int32_t id);
  bool counts_generated() const {
    return params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
  }

  kernels::DrawParams params_;
  std::vector<kernels::TokenBias> bias_;
  std::vector<kernels::TokenCount> generated_;  // kept with a presence or frequency penalty only
  std::unordered_map<int32_t, size_t> generated_index_;  // token id to index in generated_
  std::vector<bool> is_seen_;  // [vocab], kept with a repetition penalty only
  std::vector<int32_t> seen_;  // the set bits of is_seen_
};

}  // namespace ovq::model
