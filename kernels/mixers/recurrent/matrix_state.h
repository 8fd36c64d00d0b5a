// Matrix recurrence of gated_delta_net and mamba2: a head's state S [key_dim, value_dim], which
// every token updates:
//   S <- decay S                         or diag(decay) S, with a decay for every key channel
//   S <- S + k (beta (v - S^T k))^T      StateRule::kDelta: moves S^T k towards v
//   S <- S + k (beta v)^T                StateRule::kAdd
//   y = S^T q + skip (.) v
// Prefill and decode both go token by token, so they give the same bits.
#pragma once

#include <cstdint>

#include "kernels/common/dispatch.h"
#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

// Columns of S that are stored together: [n_heads][ceil(value_dim / 32)][key_dim][32] float, with
// zeros past value_dim. The sums over keys of one column are chains of their own, so their bits do
// not depend on the vector width, and one task's part of S stays in the nearest cache over all its
// tokens.
inline constexpr int kStateColumns = 32;
inline constexpr int64_t kMaxStateKeyDim = 512;
constexpr int64_t StateColumnBlocks(int64_t value_dim) {
  return (value_dim + kStateColumns - 1) / kStateColumns;
}
StateField MatrixStateField(int64_t n_heads, int64_t key_dim, int64_t value_dim);

enum class StateRule : uint8_t { kDelta, kAdd };

struct MatrixStates {
  StateRule rule;
  int n_heads;      // heads of v and S
  int n_key_heads;  // divides n_heads; head h uses q and k of head h / (n_heads / n_key_heads)
  int key_dim;      // at most kMaxStateKeyDim
  int value_dim;
  // [n_tokens, n_key_heads, key_dim] (q, k) and [n_tokens, n_heads, value_dim] (v), tokens `stride`
  // apart.
  const float *q, *k, *v;
  int64_t stride;
  const float *decay, *beta;  // [n_tokens, n_heads]; with decays_keys decay [.., n_heads, key_dim]
  const float* skip;          // [n_heads, value_dim]; null: 0
  StatePlace states;          // of the MatrixStateField
  float* y;                   // [n_tokens, n_heads, value_dim], packed
  bool decays_keys = false;   // needs StateRule::kDelta

  constexpr int key_head(int head) const { return head / (n_heads / n_key_heads); }
  // Columns [32 block, 32 block + 32) of a head's S.
  constexpr float* Columns(std::byte* session, int head, int64_t block) const {
    return states.At<float>(session, head, block);
  }
};

// Runs the recurrence over all tokens of a batch, in order within each sequence.
void AdvanceStates(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states);

OVQ_ON_EVERY_DEVICE(AdvanceStates)

}  // namespace ovq::kernels
