// ReadLogits: everything that a batch reads from its rows of logits, i.e. drawn tokens, the logits
// of given tokens and the best tokens of a row. One call for all of it, so that the host waits for
// the device once a batch and the logits stay on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"

namespace ovq::kernels {

struct TokenCount {
  int32_t id;
  int32_t count;
};
struct TokenBias {
  int32_t id;
  float bias;
};
struct TokenLogit {
  int32_t id;
  float logit;
};

// One bit for each token of the vocabulary: bit id % 32 of word id / 32, [ceil(vocab / 32)].
using TokenMaskBits = std::span<const uint32_t>;
constexpr bool AllowsToken(TokenMaskBits allowed, int32_t id) {
  return allowed.empty() || (allowed[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

struct DrawParams {
  float temperature = 1;  // 0: greedy (the best logit)
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off
  float typical_p = 1;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
};

// A weight e^x of a draw counts as 0 if x is this or less, on every device.
inline constexpr double kNegligible = -60;

// A token to draw from a row of logits. Adjustments, in this order:
//   allowed     minus infinity for the others: never drawn
//   seen        logit / repetition_penalty if positive, else * repetition_penalty
//   generated   logit - (presence_penalty + frequency_penalty * count)
//   bias        logit + bias
//   banned      minus infinity: never drawn
// Then follow temperature, top_k, typical_p, top_p and min_p. Each filter sees the distribution
// that the filters before it left, and leaves at least one token. A NaN logit counts as minus
// infinity. Ties go to the lower id. The random number is a function of (seed, position) alone. A
// token that weighs less than 2^-41 of the best may count as one that weighs nothing. Where no
// token is above minus infinity, the first that is allowed and not banned is drawn, or else the
// last of all.
struct RowDraw {
  int64_t row = 0;
  int64_t position = 0;
  DrawParams params;
  std::span<const int32_t> seen;  // no id occurs twice in a list
  std::span<const TokenCount> generated;
  std::span<const TokenBias> bias;
  std::span<const int32_t> banned;  // ascending
  TokenMaskBits allowed = {};       // empty: all
  // The results: the token with its unadjusted logit, and the logarithm of the sum of exponentials
  // of the allowed tokens' unadjusted logits: minus infinity for none, NaN for a row with a logit
  // that is not finite.
  TokenLogit drawn{};
  float log_sum_exp = 0;
};

struct RowToken {
  int64_t row = 0;
  int32_t id = 0;
  float logit = 0;  // the result
};

struct RowBest {
  int64_t row = 0;
  int32_t n = 0;                 // > 0; capped at the number of allowed tokens
  TokenMaskBits allowed = {};    // as in RowDraw
  std::vector<TokenLogit> best;  // result, descending, ties by lower id; NaN as minus infinity
};

struct LogitsReading {
  std::vector<RowDraw> draws;  // a row may have several
  std::vector<RowToken> tokens;
  std::vector<RowBest> bests;
  // Result, [n_rows]: NaN for a row with a logit that is not finite; else the logarithm of its sum
  // of exponentials, or any number for a row of which only draws and bests with a mask are asked.
  std::vector<float> log_sum_exp;
};

// Fills the results from logits [n_rows, vocab] F32, which stay unchanged. On CUDA this waits for
// all earlier work, even when nothing is asked for.
void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading);

}  // namespace ovq::kernels
