// What a batch takes from its rows of logits: drawn tokens, the logits of known tokens and the best
// of a row. One call for all of it, so that a device is read once a batch and the logits stay
// there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"

namespace ovq {

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

struct DrawParams {
  float temperature = 1;  // 0: greedy, the best logit
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // 1: off, as typical_p
  float min_p = 0;        // 0: off
  float typical_p = 1;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
};

// A token to be drawn from a row. In this order:
//   seen        logit / repetition_penalty if positive, else * repetition_penalty
//   generated   logit - (presence_penalty + frequency_penalty * count)
//   bias        logit + bias
//   banned      minus infinity: never drawn
// then temperature, top_k, typical_p, top_p, min_p; each filter sees the distribution that the ones
// before it left, and leaves at least one token. A NaN logit counts as minus infinity. Equal ranks
// go by the lower id. The random number is a function of (seed, position) alone. A token that
// weighs less than 2^-41 of the best may count as one that weighs nothing.
struct RowDraw {
  int64_t row = 0;
  int64_t position = 0;
  DrawParams params;
  std::span<const int32_t> seen;  // no id twice in one list
  std::span<const TokenCount> generated;
  std::span<const TokenBias> bias;
  std::span<const int32_t> banned;  // rising
  TokenLogit drawn{};               // the result, with the row's own logit
};

struct RowToken {
  int64_t row = 0;
  int32_t id = 0;
  float logit = 0;  // the result
};

struct RowBest {
  int64_t row = 0;
  int32_t n = 0;                 // > 0; more than the row has: all
  std::vector<TokenLogit> best;  // the result, descending, ties by lower id; NaN as minus infinity
};

struct LogitsReading {
  std::vector<RowDraw> draws;  // several may be of one row
  std::vector<RowToken> tokens;
  std::vector<RowBest> bests;
  // The result, [n_rows]; NaN for a row in which a logit is not finite.
  std::vector<float> log_sum_exp;

  void Clear();
};

// Fills the results from logits [n_rows, vocab] F32, which stay as they are. On a device that runs
// behind the host this waits for all work before it, also when nothing is wanted.
void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading);

}  // namespace ovq
