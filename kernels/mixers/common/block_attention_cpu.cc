// Attention of a tile of rows over blocks of 64 slots, any instruction set. For one row, block
// after block, with K [64, head_dim] (stored transposed), V [64, value_stride], bias b [64]:
//   s_j = q . K_j + b_j,  m' = max(m, max_j s_j),  p_j = e^(s_j - m'),
//   l' = l e^(m - m') + sum_j p_j,  acc' = acc e^(m - m') + sum_j p_j V_j
#include <algorithm>
#include <type_traits>

#include "kernels/common/prefetch.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/common/block_attention_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "hwy/contrib/math/math-inl.h"
#include "kernels/mixers/common/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kRowTile = 4;
// Accumulators must fit the register file: 32 registers where vectors are 64 bytes, else 16.
constexpr int kVectors = kLanes == 16 ? 4 : 2;
// The number of rows scored together, as a compile-time constant.
template <int kRows>
using Rows = std::integral_constant<int, kRows>;

// Prefetches n elements of the next block.
template <class T>
HWY_INLINE void PrefetchAhead(const T* ahead, int n) {
  PrefetchToL2(ahead, n * static_cast<int64_t>(sizeof(T)));
}

// Prefetches a block's exponents, if it has any.
template <class T>
HWY_INLINE void PrefetchExponents(const T* ahead, int channels) {
  if constexpr (Slots<T>::kScaled) PrefetchToL2(ahead + kBlockSlots * channels);
}

// scores[r][64] = rows[r] . keys, channel after channel in every lane. kAhead prefetches `ahead`,
// the next block's keys: with few rows a block is done before the hardware prefetcher notices the
// next one, which lies far away.
template <bool kAhead, class T>
HWY_INLINE void ScoreRows(const float* const* rows, int n_rows, const T* keys, const T* ahead,
                          int head_dim, float* scores) {
  const D d;
  const auto score = [&]<int kRows>(std::integral_constant<int, kRows>, int first) HWY_ATTR {
    // One or two rows hide the latency of a fused multiply-add behind more slots.
    constexpr int kWide = std::min(std::max(kVectors, 8 / kRows), kBlockSlots / kLanes);
    for (int s = 0; s < kBlockSlots; s += kWide * kLanes) {
      V sum[kRows][kWide];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kWide; ++v) sum[r][v] = hn::Zero(d);
      }
      for (int i = 0; i < head_dim; ++i) {
        const T* HWY_RESTRICT channel = keys + static_cast<size_t>(i) * kBlockSlots + s;
        if (kAhead && s == 0)
          PrefetchAhead(ahead + static_cast<size_t>(i) * kBlockSlots, kBlockSlots);
        V key[kWide];
        for (int v = 0; v < kWide; ++v) key[v] = LoadWide(d, channel + v * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const V x = hn::Set(d, rows[first + r][i]);
          for (int v = 0; v < kWide; ++v) sum[r][v] = hn::MulAdd(x, key[v], sum[r][v]);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        float* to = scores + (first + r) * kBlockSlots + s;
        for (int v = 0; v < kWide; ++v) hn::StoreU(sum[r][v], d, to + v * kLanes);
      }
    }
  };
  if (kAhead) PrefetchExponents(ahead, head_dim);
  int first = 0;
  for (; first + kRowTile <= n_rows; first += kRowTile) score(Rows<kRowTile>(), first);
  switch (n_rows - first) {
    case 3:
      return score(Rows<3>(), first);
    case 2:
      return score(Rows<2>(), first);
    case 1:
      return score(Rows<1>(), first);
  }
}

// acc[r] = acc[r] * scale[r] + sum_j weights[r][j] * values[j], slot j after slot.
template <int kRows, int kWide, bool kAhead, class T>
HWY_INLINE void AccumulateRows(const float* weights, const float* scale, const T* values,
                               const T* ahead, int value_stride, int c, float* acc) {
  const D d;
  V sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    const V factor = hn::Set(d, scale[r]);
    for (int v = 0; v < kWide; ++v) {
      sum[r][v] = hn::Mul(hn::LoadU(d, acc + r * value_stride + c + v * kLanes), factor);
    }
  }
  for (int s = 0; s < kBlockSlots; ++s) {
    const T* HWY_RESTRICT slot = values + static_cast<size_t>(s) * value_stride + c;
    if (kAhead && c == 0) {
      PrefetchAhead(ahead + static_cast<size_t>(s) * value_stride, value_stride);
    }
    V value[kWide];
    for (int v = 0; v < kWide; ++v) value[v] = LoadWide(d, slot + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V weight = hn::Set(d, weights[r * kBlockSlots + s]);
      for (int v = 0; v < kWide; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) {
      hn::StoreU(sum[r][v], d, acc + r * value_stride + c + v * kLanes);
    }
  }
}

template <int kRows, bool kAhead, class T>
HWY_INLINE void AccumulateTile(const float* weights, const float* scale, const T* values,
                               const T* ahead, int value_stride, float* acc) {
  // A single row hides the latency of a fused multiply-add only behind its other vectors.
  constexpr int kWide = kRows == 1 ? 8 : kVectors;
  int c = 0;
  for (; c + kWide * kLanes <= value_stride; c += kWide * kLanes) {
    AccumulateRows<kRows, kWide, kAhead>(weights, scale, values, ahead, value_stride, c, acc);
  }
  for (; c < value_stride; c += kLanes) {
    AccumulateRows<kRows, 1, kAhead>(weights, scale, values, ahead, value_stride, c, acc);
  }
}

// rows[r][j] *= scale of slot j, in types with scales. However a block is read, the scale is
// applied to scores and weights and not to the channels: a weight times its scale may be subnormal.
template <class T>
HWY_INLINE void ScaleSlots(const void* block, int channels, int n_rows, float* rows) {
  if constexpr (Slots<T>::kScaled) {
    const D d;
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const V scale = LoadScales(d, static_cast<const T*>(block), channels, s);
      for (int r = 0; r < n_rows; ++r) {
        float* at = rows + r * kBlockSlots + s;
        hn::StoreU(hn::Mul(hn::LoadU(d, at), scale), d, at);
      }
    }
  }
}

template <bool kAhead, class T>
HWY_INLINE void Accumulate(const float* weights, const float* scale, int n_rows, const T* values,
                           const T* ahead, int value_stride, float* acc) {
  if (kAhead) PrefetchExponents(ahead, value_stride);
  int r = 0;
  for (; r + kRowTile <= n_rows; r += kRowTile) {
    AccumulateTile<kRowTile, kAhead>(weights + r * kBlockSlots, scale + r, values, ahead,
                                     value_stride, acc + r * value_stride);
  }
  for (; r < n_rows; ++r) {
    AccumulateTile<1, kAhead>(weights + r * kBlockSlots, scale + r, values, ahead, value_stride,
                              acc + r * value_stride);
  }
}

// Turns one row's 64 scores into weights; updates the running maximum, sum and rescale factor.
HWY_INLINE void SoftmaxRow(float* scores, const float* bias, int lo, int hi, float& max, float& sum,
                           float& scale) {
  const D d;
  const V lowest = hn::Set(d, kLowestScore);
  const V first = hn::Set(d, static_cast<float>(lo)), end = hn::Set(d, static_cast<float>(hi));
  V highest = lowest;
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    const V slot = hn::Iota(d, static_cast<float>(s));
    V score = hn::LoadU(d, scores + s);
    if (bias) score = hn::Add(score, hn::LoadU(d, bias + s));
    score = hn::IfThenElse(hn::And(hn::Ge(slot, first), hn::Lt(slot, end)), score, lowest);
    hn::StoreU(score, d, scores + s);
    highest = hn::Max(highest, score);
  }
  const float new_max = HWY_MAX(max, hn::GetLane(hn::MaxOfLanes(d, highest)));
  const V shift = hn::Set(d, new_max);
  V total = hn::Zero(d);
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    const V slot = hn::Iota(d, static_cast<float>(s));
    V weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + s), shift));
    weight = hn::IfThenElseZero(hn::And(hn::Ge(slot, first), hn::Lt(slot, end)), weight);
    hn::StoreU(weight, d, scores + s);
    total = hn::Add(total, weight);
  }
  scale = hn::GetLane(hn::Exp(d, hn::Set(d, max - new_max)));
  sum = sum * scale + hn::GetLane(hn::SumOfLanes(d, total));
  max = new_max;
}

HWY_INLINE void Probe(const float* scores, int live, int32_t first_slot, float& best,
                      int32_t& best_slot) {
  const D d;
  const V lowest = hn::Set(d, -HUGE_VALF);
  const V end = hn::Set(d, static_cast<float>(live));
  V highest = lowest;
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    const V slot = hn::Iota(d, static_cast<float>(s));
    highest = hn::Max(highest, hn::IfThenElse(hn::Lt(slot, end), hn::LoadU(d, scores + s), lowest));
  }
  if (!(hn::GetLane(hn::MaxOfLanes(d, highest)) > best)) return;
  for (int s = 0; s < live; ++s) {
    if (scores[s] > best) {
      best = scores[s];
      best_slot = first_slot + s;
    }
  }
}

HWY_INLINE void OpenRange(const BlockAttention& tile, const KvBlock& block, int32_t position,
                          int& lo, int& hi) {
  lo = 0;
  hi = block.live;
  if (block.live >= 0) return;
  hi = HWY_MIN(HWY_MAX(position + 1 - block.begin, 0), kBlockSlots);
  if (tile.window > 0) lo = HWY_MAX(position + 1 - tile.window - block.begin, 0);
}

template <class T>
void WidenToFloat(const T* from, size_t n, float* to) {
  const D d;
  for (size_t i = 0; i < n; i += kLanes) hn::StoreU(LoadWide(d, from + i), d, to + i);
}

// Keys and values of a block as T, and those of the next block if it is prefetched.
template <class T>
struct Operands {
  const T* keys;
  const T* values;
  const T* next_keys;
  const T* next_values;
};

template <class T>
void AttendTypedSegment(const BlockAttention& tile, int segment, size_t fetched, float* scratch,
                        const SegmentSums& sums) {
  const int n_queries = tile.n_queries;
  float* scores = scratch;                                            // [n_queries + n_probes][64]
  float* scale = scores + (n_queries + tile.n_probes) * kBlockSlots;  // [n_queries]
  std::fill_n(sums.max, n_queries, kLowestScore);
  std::fill_n(sums.sum, n_queries, 0.0f);
  std::fill_n(sums.out, static_cast<size_t>(n_queries) * tile.value_stride, 0.0f);
  std::fill_n(sums.best_score, tile.n_probes, -HUGE_VALF);
  std::fill_n(sums.best_slot, tile.n_probes, 0);

  const size_t begin = static_cast<size_t>(segment) * kCpuSegmentBlocks,
               end = std::min(begin + kCpuSegmentBlocks, tile.blocks.size());
  int32_t first_slot = 0;
  for (size_t i = 0; i < begin; ++i) first_slot += tile.blocks[i].live >= 0 ? kBlockSlots : 0;
  const auto attend = [&]<bool kAhead, class U>(std::bool_constant<kAhead>, const KvBlock& block,
                                                const Operands<U>& at) HWY_ATTR {
    const int n_probes = block.live < 0 ? 0 : tile.n_probes;
    ScoreRows<kAhead>(tile.rows, n_queries + n_probes, at.keys, at.next_keys, tile.head_dim,
                      scores);
    ScaleSlots<T>(block.keys, tile.head_dim, n_queries + n_probes, scores);
    for (int r = 0; r < n_queries; ++r) {
      int lo, hi;
      OpenRange(tile, block, tile.query_position[r], lo, hi);
      SoftmaxRow(scores + r * kBlockSlots, block.bias, lo, hi, sums.max[r], sums.sum[r], scale[r]);
    }
    ScaleSlots<T>(block.values, tile.value_stride, n_queries, scores);
    Accumulate<kAhead>(scores, scale, n_queries, at.values, at.next_values, tile.value_stride,
                       sums.out);
    for (int r = 0; r < n_probes; ++r) {
      Probe(scores + (n_queries + r) * kBlockSlots, block.live, first_slot, sums.best_score[r],
            sums.best_slot[r]);
    }
  };

  // Many rows read a block often, so it is widened to float32 once. Few rows widen while loading,
  // and must prefetch to hide the memory's latency.
  const bool many = n_queries + tile.n_probes > 2 * kRowTile;
  float* wide_keys = scale + n_queries;
  float* wide_values = wide_keys + static_cast<size_t>(tile.head_dim) * kBlockSlots;
  for (size_t i = begin; i < end; ++i) {
    const KvBlock& block = tile.blocks[i];
    const KvBlock& next = tile.blocks[i + 1 < fetched ? i + 1 : i];
    const Operands<T> at = {static_cast<const T*>(block.keys), static_cast<const T*>(block.values),
                            static_cast<const T*>(next.keys), static_cast<const T*>(next.values)};
    if (!many) {
      attend(std::true_type(), block, at);
    } else if constexpr (!std::is_same_v<T, float>) {
      WidenToFloat(at.keys, static_cast<size_t>(tile.head_dim) * kBlockSlots, wide_keys);
      WidenToFloat(at.values, static_cast<size_t>(tile.value_stride) * kBlockSlots, wide_values);
      attend(std::false_type(), block, Operands<float>{wide_keys, wide_values, nullptr, nullptr});
    } else {
      attend(std::false_type(), block, at);
    }
    if (block.live >= 0) first_slot += kBlockSlots;
  }
}

void AttendSegment(const BlockAttention& tile, int segment, size_t fetched, float* scratch,
                   const SegmentSums& sums) {
  VisitSlots(tile.dtype, [&]<class T>(Slots<T>) HWY_ATTR {
    AttendTypedSegment<T>(tile, segment, fetched, scratch, sums);
  });
}

// Folds segment b into segment a: m = max(m_a, m_b),  l = l_a e^(m_a - m) + l_b e^(m_b - m),  acc
// likewise.
void FoldSegment(const BlockAttention& tile, const SegmentSums& next, const SegmentSums& total) {
  const D d;
  for (int r = 0; r < tile.n_queries; ++r) {
    const float max = HWY_MAX(total.max[r], next.max[r]);
    const V of_total = hn::Exp(d, hn::Set(d, total.max[r] - max)),
            of_next = hn::Exp(d, hn::Set(d, next.max[r] - max));
    total.max[r] = max;
    total.sum[r] = total.sum[r] * hn::GetLane(of_total) + next.sum[r] * hn::GetLane(of_next);
    float* to = total.out + static_cast<size_t>(r) * tile.value_stride;
    const float* from = next.out + static_cast<size_t>(r) * tile.value_stride;
    for (int c = 0; c < tile.value_stride; c += kLanes) {
      const V before = hn::Mul(hn::LoadU(d, to + c), of_total);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, from + c), of_next, before), d, to + c);
    }
  }
  for (int r = 0; r < tile.n_probes; ++r) {
    if (!(next.best_score[r] > total.best_score[r])) continue;
    total.best_score[r] = next.best_score[r];
    total.best_slot[r] = next.best_slot[r];
  }
}

void ScoreBlock(const float* row, const void* keys, DType dtype, int head_dim, float* scores) {
  VisitSlots(dtype, [&]<class T>(Slots<T>) HWY_ATTR {
    ScoreRows</*kAhead=*/false>(&row, 1, static_cast<const T*>(keys), {}, head_dim, scores);
    ScaleSlots<T>(keys, head_dim, 1, scores);
  });
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {

HWY_EXPORT(AttendSegment);
HWY_EXPORT(FoldSegment);
HWY_EXPORT(ScoreBlock);

void AttendSegmentCpu(const BlockAttention& tile, int segment, size_t fetched, float* scratch,
                      const SegmentSums& sums) {
  HWY_DYNAMIC_DISPATCH(AttendSegment)(tile, segment, fetched, scratch, sums);
}

void FoldSegmentCpu(const BlockAttention& tile, const SegmentSums& next, const SegmentSums& total) {
  HWY_DYNAMIC_DISPATCH(FoldSegment)(tile, next, total);
}

void ScoreBlockCpu(const float* row, const void* keys, DType dtype, int head_dim, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreBlock)(row, keys, dtype, head_dim, scores);
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
