// Matrix recurrence on the CPU, for 32 columns of a head's S [key_dim, 32], token after token:
//   u = beta (v - decay S^T k), or beta v;  S = decay S + k u^T;  y = S^T q + skip v
// With a decay for every key, u = beta (v - S^T (decay k)) and row i of S has the factor decay[i].
// Each element of S^T x is one chain of fused multiply-adds over the keys, in its column's lane.
#include <algorithm>
#include <cstring>

#include "kernels/common/highway_targets.h"
#include "kernels/common/parallel.h"
#include "kernels/mixers/recurrent/matrix_state.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/recurrent/matrix_state_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr D d;

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kVectors = kStateColumns / kLanes;

// Inputs of one token for some columns.
struct TokenUpdate {
  const float *q, *k, *decay;  // [key_dim]; decay [1] if it is the head's
  V update[kVectors];          // u of the equation above
};

// Element i of the vector by which S is read before it decays: k[i], or decay[i] k[i].
template <bool kDecaysKeys>
HWY_INLINE V ReadingKey(const float* k, const float* decay, int i) {
  return hn::Set(d, kDecaysKeys ? decay[i] * k[i] : k[i]);
}

// old_value = S^T k: the value that S has for the key.
template <bool kDecaysKeys>
HWY_INLINE void ReadOldValue(const float* HWY_RESTRICT s, const float* k, const float* key_decay,
                             int key_dim, V* old_value) {
  for (int c = 0; c < kVectors; ++c) old_value[c] = hn::Zero(d);
  for (int i = 0; i < key_dim; ++i, s += kStateColumns) {
    const V key = ReadingKey<kDecaysKeys>(k, key_decay, i);
    for (int c = 0; c < kVectors; ++c) {
      old_value[c] = hn::MulAdd(key, hn::LoadU(d, s + c * kLanes), old_value[c]);
    }
  }
}

// Updates S and computes y = S^T q. The same pass computes old_value, S^T k of the next token,
// which that needs first.
template <bool kReadsNext, bool kDecaysKeys>
HWY_INLINE void Rewrite(float* HWY_RESTRICT s, const TokenUpdate& token, const float* next_k,
                        const float* next_decay, int key_dim, V* y, V* old_value) {
  for (int c = 0; c < kVectors; ++c) y[c] = old_value[c] = hn::Zero(d);
  for (int i = 0; i < key_dim; ++i, s += kStateColumns) {
    const V key = hn::Set(d, token.k[i]), query = hn::Set(d, token.q[i]);
    const V decay = hn::Set(d, token.decay[kDecaysKeys ? i : 0]);
    V next_key = hn::Zero(d);
    if constexpr (kReadsNext) next_key = ReadingKey<kDecaysKeys>(next_k, next_decay, i);
    for (int c = 0; c < kVectors; ++c) {
      const V kept = hn::Mul(decay, hn::LoadU(d, s + c * kLanes));
      const V state = hn::MulAdd(key, token.update[c], kept);
      hn::StoreU(state, d, s + c * kLanes);
      y[c] = hn::MulAdd(query, state, y[c]);
      if constexpr (kReadsNext) old_value[c] = hn::MulAdd(next_key, state, old_value[c]);
    }
  }
}

template <StateRule kRule, bool kDecaysKeys>
HWY_INLINE void AdvanceColumns(const MatrixStates& states, int64_t begin, int64_t end, int head,
                               int64_t block, float* s) {
  const int dk = states.key_dim;
  const int64_t column = head * int64_t{states.value_dim} + block * kStateColumns;
  const auto n = static_cast<size_t>(
      std::min<int64_t>(kStateColumns, states.value_dim - block * kStateColumns));
  // Zeros past value_dim keep those columns of S zero.
  HWY_ALIGN float values[kStateColumns] = {}, skips[kStateColumns] = {};
  if (states.skip) std::memcpy(skips, states.skip + column, n * sizeof(float));
  const int64_t key = states.key_head(head) * int64_t{dk};
  const int64_t n_decays = kDecaysKeys ? dk : 1, of_token = states.n_heads * n_decays;
  const float* const decays = states.decay + head * n_decays;
  TokenUpdate token;
  V y[kVectors], old_value[kVectors];
  if constexpr (kRule == StateRule::kDelta) {
    ReadOldValue<kDecaysKeys>(s, states.k + begin * states.stride + key, decays + begin * of_token,
                              dk, old_value);
  }
  for (int64_t r = begin; r < end; ++r) {
    std::memcpy(values, states.v + r * states.stride + column, n * sizeof(float));
    token.q = states.q + r * states.stride + key;
    token.k = states.k + r * states.stride + key;
    token.decay = decays + r * of_token;
    const V decay = hn::Set(d, kDecaysKeys ? 1.0f : token.decay[0]);
    const V beta = hn::Set(d, states.beta[r * states.n_heads + head]);
    for (int c = 0; c < kVectors; ++c) {
      V value = hn::Load(d, values + c * kLanes);
      if constexpr (kRule == StateRule::kDelta) value = hn::NegMulAdd(decay, old_value[c], value);
      token.update[c] = hn::Mul(beta, value);
    }
    if (kRule == StateRule::kDelta && r + 1 < end) {
      Rewrite<true, kDecaysKeys>(s, token, token.k + states.stride, token.decay + of_token, dk, y,
                                 old_value);
    } else {
      Rewrite<false, kDecaysKeys>(s, token, nullptr, nullptr, dk, y, old_value);
    }
    for (int c = 0; c < kVectors; ++c) {
      float* value = values + c * kLanes;
      const V skip = hn::Load(d, skips + c * kLanes);
      hn::Store(hn::MulAdd(skip, hn::Load(d, value), y[c]), d, value);
    }
    std::memcpy(states.y + r * states.n_heads * states.value_dim + column, values,
                n * sizeof(float));
  }
}

// Tokens [begin, end) of one sequence.
void AdvanceTokens(const MatrixStates& states, int64_t begin, int64_t end, int head, int64_t block,
                   float* s) {
  if (states.rule == StateRule::kAdd) {
    AdvanceColumns<StateRule::kAdd, false>(states, begin, end, head, block, s);
  } else if (states.decays_keys) {
    AdvanceColumns<StateRule::kDelta, true>(states, begin, end, head, block, s);
  } else {
    AdvanceColumns<StateRule::kDelta, false>(states, begin, end, head, block, s);
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(AdvanceTokens);

}  // namespace

namespace cpu {

void AdvanceStates(DeviceContext& context, const BatchSequences& seqs, const MatrixStates& states) {
  const int64_t blocks = StateColumnBlocks(states.value_dim), of_sequence = states.n_heads * blocks;
  ParallelFor(context, seqs.n_seqs() * of_sequence, [&](int64_t task, int) {
    const auto s = static_cast<int>(task / of_sequence);
    const auto head = static_cast<int>(task % of_sequence / blocks);
    const int64_t block = task % blocks;
    HWY_DYNAMIC_DISPATCH(AdvanceTokens)
    (states, seqs.token_begin[s], seqs.token_begin[s + 1], head, block,
     states.Columns(seqs.state[s], head, block));
  });
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
