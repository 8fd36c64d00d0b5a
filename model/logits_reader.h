// Reads drawn tokens and scores of known tokens from a batch's logits.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"
#include "model/sampler.h"

namespace ovq::model {

struct TokenScore {
  bool finite = true;             // as in Sampled
  std::optional<float> logprob;   // log-probability of the given token
  std::vector<TokenLogprob> top;  // descending, ties by lower id
};

// Describes the draw of a sequence's next token. All it points to must outlive LogitsReader::Read.
struct DrawRequest {
  const Sampler* sampler = nullptr;
  int top_logprobs = 0;
  std::span<const int32_t> banned = {};  // token ids that are not drawn, rising
  // Banned in place of `banned` for the first n_early draws.
  std::span<const int32_t> banned_early = {};
  int64_t n_early = 0;
  // For each draw the tokens that are allowed, [1 + drafted tokens]; empty: all. Log-probabilities
  // are then those of the allowed tokens alone.
  std::span<const kernels::TokenMaskBits> allowed = {};
};

// Collects all that a batch wants of its logits, reads them in one call, and gives the results by
// the index that each Want call returned.
class LogitsReader {
 public:
  // Wants a draw of the token at `position` from a row, and for each drafted token a draw of the
  // token after it from the next row, as if the sampler had observed the drafted tokens up to
  // there. Returns the index of the first draw; the others follow it. One row may serve several
  // draws.
  size_t WantDraws(const DrawRequest& request, int64_t row, int64_t position,
                   std::span<const int32_t> drafted = {});
  size_t WantScore(int64_t row, std::optional<int32_t> token, int top_logprobs);

  // logits: [n_rows, vocab] in the device's memory. The batch's only wait for the device. Samplers
  // stay as they are: the caller lets them observe the draws that it keeps.
  void Read(kernels::DeviceContext& context, kernels::TensorView logits);

  Sampled Draw(size_t index) const;
  TokenScore Score(size_t index) const;
  bool IsFinite(int64_t row) const;  // whether all logits of the row are finite

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct ScorePlace {
    int64_t row;
    size_t token;  // in reading_.tokens, kNone without a token
    size_t best;   // in reading_.bests, kNone without top_logprobs
  };

  size_t WantBest(int64_t row, int n, kernels::TokenMaskBits allowed = {});
  std::vector<TokenLogprob> TopLogprobs(size_t best, float log_sum_exp) const;

  kernels::LogitsReading reading_;
  std::vector<size_t> draw_bests_;  // [reading_.draws], in reading_.bests
  std::vector<ScorePlace> scores_;
  std::deque<DraftedCounts> drafted_counts_;  // stable addresses: draws point to them
};

}  // namespace ovq::model
