// Sampling one token from a row of logits. Random numbers are a function of (seed, position), so
// that a request's tokens never depend on what else the server does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace ovq {

struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float typical_p = 1.0f;           // (0, 1]
  float repetition_penalty = 1.0f;  // > 0; prompt and generated tokens: logit / r or * r
  float presence_penalty = 0.0f;    // [-2, 2]; generated tokens
  float frequency_penalty = 0.0f;   // [-2, 2]; generated tokens, times the count
  uint64_t seed = 0;                // the server draws one when the request has none
  std::unordered_map<int32_t, float> logit_bias;  // [-100, 100]

  // InvalidArgument naming the field and its range; token ids of logit_bias are checked too.
  absl::Status Validate(int64_t vocab_size) const;
};

struct TokenLogprob {
  int32_t token_id;
  float logprob;
};

struct Sampled {
  int32_t token_id = 0;
  float logprob = 0;              // ln softmax(logits) of the raw model logits, before any change
  std::vector<TokenLogprob> top;  // the raw distribution's best, descending, ties by lower id
};

// One per generated sequence; remembers the tokens that penalties count. Engine thread only.
class Sampler {
 public:
  Sampler(SamplingParams params, int64_t vocab_size);
  // Counts a token of the prompt (repetition penalty).
  void ObservePrompt(std::span<const int32_t> tokens);
  // logits [vocab], left unchanged. log_sum_exp of the row. position: of the token to be drawn.
  // banned: token ids that must not be drawn (end of sequence under ignore_eos), may be empty.
  // Order: penalties, logit_bias, banned, temperature, top_k, typical_p, top_p, min_p.
  Sampled Sample(std::span<const float> logits, float log_sum_exp, int64_t position,
                 int top_logprobs, std::span<const int32_t> banned = {});

 private:
  SamplingParams params_;
  std::unordered_map<int32_t, int32_t> generated_;  // token -> count
  std::vector<bool> seen_;                          // [vocab], only with a repetition penalty
  std::vector<std::pair<float, int32_t>> candidates_;
};

// The `n` best of a row of logits as log-probabilities, descending, ties by lower id.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, float log_sum_exp, int n);

}  // namespace ovq
