// What a step takes from its logits, as log-probabilities: drawn tokens and scores of known ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"
#include "model/sampler.h"

namespace ovq {

struct TokenScore {
  bool finite = true;             // as Sampled has it
  std::optional<float> logprob;   // of the token that was asked for
  std::vector<TokenLogprob> top;  // descending, ties by lower id
};

// First everything is named that a step needs from its rows; then it is read in one call; then it
// is handed out in the order in which it was named.
class LogitsReader {
 public:
  void Clear();

  // A token drawn by `sampler` from a row, at `position`. Several may be of one row. `sampler` and
  // `banned` outlive Read.
  void WantDraw(Sampler& sampler, int64_t row, int64_t position, int top_logprobs,
                std::span<const int32_t> banned);
  void WantScore(int64_t row, std::optional<int32_t> token, int top_logprobs);
  void WantCheck(int64_t row);  // only whether it is finite

  // logits [n_tokens, vocab] in the device's memory; the step's only wait for it. The samplers
  // count what they drew.
  void Read(DeviceContext& context, TensorView logits);

  Sampled NextDraw();
  TokenScore NextScore();
  bool NextCheck();

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct Draw {
    Sampler* sampler;
    size_t best;  // in reading_.bests, kNone without top_logprobs
  };
  struct Score {
    int64_t row;
    size_t token;  // in reading_.tokens, kNone for none
    size_t best;
  };

  size_t WantBest(int64_t row, int n);
  std::vector<TokenLogprob> TopLogprobs(size_t best, float log_sum_exp) const;

  LogitsReading reading_;
  std::vector<Draw> draws_;  // of reading_.draws
  std::vector<Score> scores_;
  std::vector<int64_t> checks_;  // rows
  size_t next_draw_ = 0, next_score_ = 0, next_check_ = 0;
};

}  // namespace ovq
