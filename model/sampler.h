// Sampling one token from a row of logits. Random numbers are a function of (seed, position), so
// that a request's tokens never depend on what else the server does.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

namespace ovq {

struct SamplingParams {
  float temperature = 1.0f;         // [0, 100]; 0 = greedy
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float typical_p = 1.0f;           // (0, 1]
  float repetition_penalty = 1.0f;  // (0, 100]; prompt and generated tokens: logit / r or * r
  float presence_penalty = 0.0f;    // [-2, 2]; generated tokens
  float frequency_penalty = 0.0f;   // [-2, 2]; generated tokens, times the count
  uint64_t seed = 0;                // the server draws one when the request has none
  std::unordered_map<int32_t, float> logit_bias{};  // [-100, 100]

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
  // Counts tokens of the prompt (repetition penalty).
  void ObservePrompt(std::span<const int32_t> tokens);
  // Draws a token and counts it as generated. logits [vocab], left unchanged. log_sum_exp of the
  // row. position: of the token to be drawn. banned: token ids that must not be drawn (end of
  // sequence under ignore_eos), may be empty. A NaN logit counts as minus infinity.
  // Order: penalties, logit_bias, banned, temperature, top_k, typical_p, top_p, min_p; each filter
  // sees the distribution that the ones before it left, and leaves at least one token.
  Sampled Sample(std::span<const float> logits, float log_sum_exp, int64_t position,
                 int top_logprobs, std::span<const int32_t> banned = {});

 private:
  struct Candidate {
    int32_t id;
    float logit;
    double weight;  // exp((logit - best) / temperature): the probability up to a factor
    double rank;    // what the filter at work sorts by
  };

  std::span<const float> Adjust(std::span<const float> logits, std::span<const int32_t> banned);
  void Gather(std::span<const float> logits);
  // Keeps the candidates of lowest rank, ties by lower id: the fewest whose weights reach `mass` of
  // the sum.
  void KeepMass(double mass);
  void KeepTypical();
  void KeepAboveMinP();
  int32_t Draw(int64_t position) const;
  void MarkSeen(int32_t id);

  SamplingParams params_;
  std::unordered_map<int32_t, int32_t> generated_;  // token -> count
  std::vector<bool> is_seen_;                       // [vocab], only with a repetition penalty
  std::vector<int32_t> seen_;                       // the set bits of is_seen_
  std::vector<float> adjusted_;                     // [vocab], only where something changes logits
  std::vector<Candidate> candidates_;
  std::vector<Candidate> border_;  // scratch of KeepMass
};

// The `n` best of a row of logits as log-probabilities, descending, ties by lower id.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, float log_sum_exp, int n);

}  // namespace ovq
