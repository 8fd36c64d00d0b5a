// A head's state as a matrix S [key_dim, value_dim] that every token rewrites:
//   S <- decay S
//   S <- S + k (beta (v - S^T k))^T      StateRule::kDelta: what S answers to k moves towards v
//   S <- S + k (beta v)^T                StateRule::kAdd
//   y = S^T q + skip (.) v
// Prefill and decode alike go token by token, so that they give the same bits.
#pragma once

#include <cstdint>

#include "kernels/mixers/mixer.h"

namespace ovq {

// Columns of S that lie together: [n_heads][ceil(value_dim / 32)][key_dim][32] float, the columns
// past value_dim zeros. A column's sums over the keys are chains of their own, so their bits depend
// on no vector's width, and one task's share of S stays in the nearest cache while it walks tokens.
inline constexpr int kStateColumns = 32;
inline constexpr int64_t kMaxStateKeyDim = 512;
constexpr int64_t StateColumnBlocks(int64_t value_dim) {
  return (value_dim + kStateColumns - 1) / kStateColumns;
}
StateField MatrixStateField(int64_t n_heads, int64_t key_dim, int64_t value_dim);

enum class StateRule : uint8_t { kDelta, kAdd };

struct MatrixStates {
  StateRule rule;
  int n_heads;      // of values and states
  int n_key_heads;  // a divisor; head h has the keys and queries of h / (n_heads / n_key_heads)
  int key_dim;      // at most kMaxStateKeyDim
  int value_dim;
  // Heads side by side, tokens `stride` apart.
  const float *q, *k, *v;
  int64_t stride;
  const float *decay, *beta;  // [n_tokens, n_heads]
  const float* skip;          // [n_heads, value_dim]; null: 0
  size_t states;              // of the field, from a session's base
  float* y;                   // [n_tokens, n_heads, value_dim], packed

  constexpr int key_head(int head) const { return head / (n_heads / n_key_heads); }
  // Columns [32 block, 32 block + 32) of a head's S.
  constexpr float* Columns(std::byte* session, int head, int64_t block) const {
    const size_t bytes = static_cast<size_t>(key_dim) * kStateColumns * sizeof(float);
    const StatePlace place = {states, static_cast<size_t>(StateColumnBlocks(value_dim)) * bytes,
                              bytes};
    return place.At<float>(session, head, block);
  }
};

// All tokens of a batch, each after those before it in its sequence.
void AdvanceStates(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states);

}  // namespace ovq
