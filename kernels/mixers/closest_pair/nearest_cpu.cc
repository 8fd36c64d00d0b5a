#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/nearest.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/closest_pair/nearest_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/common/load_wide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using DI = hn::Rebind<int32_t, D>;
using M = hn::Mask<D>;

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kSums = 16;
constexpr int kRowTile = 4;
// Accumulators must fit the register file: 32 registers where vectors are 64 bytes, else 16.
constexpr int kVectors = kLanes == 16 ? 4 : 2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// kRows keys against one block.
template <int kRows, class T>
HWY_INLINE void KeyDistancesOf(const float* const* rows, const T* keys, int head_dim,
                               float* const* distances, size_t at) {
  const D d;
  for (int s = 0; s < kBlockSlots; s += kVectors * kLanes) {
    V sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
    }
    for (int i = 0; i < head_dim; ++i) {
      const T* HWY_RESTRICT channel = keys + static_cast<size_t>(i) * kBlockSlots + s;
      V key[kVectors];
      for (int v = 0; v < kVectors; ++v) key[v] = LoadWide(d, channel + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, rows[r][i]);
        for (int v = 0; v < kVectors; ++v) {
          const V apart = hn::Sub(x, key[v]);
          sum[r][v] = hn::MulAdd(apart, apart, sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v)
        hn::StoreU(sum[r][v], d, distances[r] + at + s + v * kLanes);
    }
  }
}

template <class T>
HWY_INLINE void KeyDistancesOfBlock(const KeyDistances& batch, const T* keys, size_t at) {
  const auto n = static_cast<int>(batch.keys.size());
  const float* const* rows = batch.keys.data();
  float* const* to = batch.distances.data();
  int r = 0;
  for (; r + kRowTile <= n; r += kRowTile) {
    KeyDistancesOf<kRowTile>(rows + r, keys, batch.head_dim, to + r, at);
  }
  switch (n - r) {
    case 3:
      return KeyDistancesOf<3>(rows + r, keys, batch.head_dim, to + r, at);
    case 2:
      return KeyDistancesOf<2>(rows + r, keys, batch.head_dim, to + r, at);
    case 1:
      return KeyDistancesOf<1>(rows + r, keys, batch.head_dim, to + r, at);
  }
}

void FillKeyDistances(const KeyDistances& batch) {
  const D d;
  const bool widens = batch.keys.size() > kRowTile;
  const size_t n = static_cast<size_t>(batch.head_dim) * kBlockSlots;
  for (size_t b = 0; b < batch.blocks.size(); ++b) {
    const void* keys = batch.blocks[b].keys;
    if (batch.dtype == DType::kF32) {
      KeyDistancesOfBlock(batch, static_cast<const float*>(keys), b * kBlockSlots);
    } else if (widens) {
      for (size_t i = 0; i < n; i += kLanes) {
        hn::StoreU(LoadWide(d, static_cast<const BF16*>(keys) + i), d, batch.wide + i);
      }
      KeyDistancesOfBlock(batch, static_cast<const float*>(batch.wide), b * kBlockSlots);
    } else {
      KeyDistancesOfBlock(batch, static_cast<const BF16*>(keys), b * kBlockSlots);
    }
  }
}

// Adds up partial sums, halves on halves.
template <class Part>
HWY_INLINE float AddUp([[maybe_unused]] Part part, hn::Vec<Part> sums) {
#if HWY_TARGET == HWY_SCALAR
  return hn::GetLane(sums);
#else
  if constexpr (hn::MaxLanes(part) > 4) {
    const hn::Half<Part> half;
    return AddUp(half, hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)));
  } else {
    float lanes[hn::MaxLanes(part)];
    hn::StoreU(sums, part, lanes);
    for (size_t half = hn::MaxLanes(part) / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
#endif
}

// |x - y|^2 of values; `x` null: |y|^2.
template <class T>
HWY_INLINE float ValueDistance(const float* x, const T* y, int value_stride) {
  const D d;
  constexpr int kParts = kSums / kLanes;
  V sum[kParts];
  for (int v = 0; v < kParts; ++v) sum[v] = hn::Zero(d);
  for (int c = 0; c < value_stride; c += kSums) {
    for (int v = 0; v < kParts; ++v) {
      V apart = LoadWide(d, y + c + v * kLanes);
      if (x != nullptr) apart = hn::Sub(hn::LoadU(d, x + c + v * kLanes), apart);
      sum[v] = hn::MulAdd(apart, apart, sum[v]);
    }
  }
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) sum[v] = hn::Add(sum[v], sum[v + half]);
  }
  return AddUp(d, sum[0]);
}

HWY_INLINE M Candidates(DI di, hn::Vec<DI> partners) {
  return hn::RebindMask(D(), hn::Not(hn::Eq(partners, hn::Zero(di))));
}

template <class T>
HWY_INLINE float Distance(const NearestSearch& search, int32_t i) {
  const auto stride = static_cast<size_t>(search.value_stride);
  const T* values =
      static_cast<const T*>(search.blocks[static_cast<size_t>(i) / kBlockSlots].values);
  return search.key_distances[i] +
         search.value_scale * ValueDistance(search.value,
                                            values + static_cast<size_t>(i % kBlockSlots) * stride,
                                            search.value_stride);
}

// What the relative errors of sizes and of distances stay below by far: sums of at most 1,024 / 16
// squares in float32.
constexpr float kSlack = 1e-4f;

// No more than the distances of a vector of candidates from their keys and the sizes of values.
HWY_INLINE V LeastDistances(const NearestSearch& search, size_t first) {
  const D d;
  const V keys = hn::LoadU(d, search.key_distances + first);
  if (search.sizes == nullptr) return keys;
  const V size = hn::Set(d, search.size), sizes = hn::LoadU(d, search.sizes + first);
  V apart = hn::AbsDiff(size, sizes);
  apart = hn::Max(hn::Zero(d), hn::NegMulAdd(hn::Set(d, kSlack), hn::Add(size, sizes), apart));
  const V whole = hn::MulAdd(hn::Set(d, search.value_scale), hn::Mul(apart, apart), keys);
  return hn::Mul(whole, hn::Set(d, 1 - kSlack));
}

// The candidate that is nearest by its least distance, -1 if none is finite: most others are then
// seen to be too far away without a look at their values.
int32_t LikelyNearest(const NearestSearch& search) {
  const D d;
  const DI di;
  V lowest = hn::Set(d, kInfinity);
  auto at = hn::Set(di, -1);
  for (size_t b = 0; b < search.blocks.size(); ++b) {
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const size_t first = b * kBlockSlots + static_cast<size_t>(s);
      const V distance = LeastDistances(search, first);
      const M nearer = hn::And(Candidates(di, hn::LoadU(di, search.blocks[b].partners + s)),
                               hn::Lt(distance, lowest));
      lowest = hn::IfThenElse(nearer, distance, lowest);
      at =
          hn::IfThenElse(hn::RebindMask(di, nearer), hn::Iota(di, static_cast<int32_t>(first)), at);
    }
  }
  float distances[kLanes];
  int32_t candidates[kLanes];
  hn::StoreU(lowest, d, distances);
  hn::StoreU(at, di, candidates);
  int lane = 0;
  for (int i = 1; i < kLanes; ++i) lane = distances[i] < distances[lane] ? i : lane;
  return candidates[lane];
}

template <class T>
class Search {
 public:
  explicit Search(const NearestSearch& search) : search_(search) {}

  Nearest Find() {
    const int32_t seed = LikelyNearest(search_);
    if (seed >= 0) Consider(Distance<T>(search_, seed), seed);
    for (size_t b = 0; b < search_.blocks.size(); ++b) {
      for (int s = 0; s < kBlockSlots; s += kLanes) Meet(b, s);
    }
    return nearest_;
  }

 private:
  uint32_t Oldest(int32_t i) const {
    return search_.blocks[static_cast<size_t>(i) / kBlockSlots].oldest[i % kBlockSlots];
  }
  HWY_INLINE void Consider(float distance, int32_t i) {
    if (distance < nearest_.distance || (distance == nearest_.distance && nearest_.candidate >= 0 &&
                                         Oldest(i) < Oldest(nearest_.candidate))) {
      nearest_ = {distance, i};
    }
  }

  // One vector of candidates.
  HWY_INLINE void Meet(size_t b, int s) {
    const D d;
    const DI di;
    const CandidateBlock& block = search_.blocks[b];
    const auto first = static_cast<int32_t>(b * kBlockSlots) + s;
    const auto partners = hn::LoadU(di, block.partners + s);
    const auto lost = hn::Or(hn::Eq(partners, hn::Set(di, search_.gone[0] + 1)),
                             hn::Eq(partners, hn::Set(di, search_.gone[1] + 1)));
    const M candidates = Candidates(di, partners),
            is_lost = hn::And(candidates, hn::RebindMask(d, lost));
    const V least = LeastDistances(search_, static_cast<size_t>(first)),
            limit = hn::Set(d, nearest_.distance);
    if (hn::AllFalse(d, hn::Or(is_lost, hn::And(candidates, hn::Le(least, limit))))) return;
    float distances[kLanes];
    hn::StoreU(least, d, distances);
    for (int i = 0; i < kLanes; ++i) MeetOne(block, first + i, distances[i]);
  }

  void MeetOne(const CandidateBlock& block, int32_t i, float least) {
    const int slot = i % kBlockSlots;
    int32_t& partner = block.partners[slot];
    float& bound = block.bounds[slot];
    if (partner == 0) return;
    const bool is_lost = partner == search_.gone[0] + 1 || partner == search_.gone[1] + 1;
    if (is_lost) partner = kStalePartner;
    if (!(least <= nearest_.distance)) return;
    const float distance = Distance<T>(search_, i);
    Consider(distance, i);
    if (distance == 0 && partner == kStalePartner && (is_lost || bound > 0)) {
      bound = 0;
      partner = search_.self + 1;
    }
  }

  const NearestSearch& search_;
  Nearest nearest_ = {kInfinity, -1};
};

Nearest FindNearest(const NearestSearch& search) {
  return search.dtype == DType::kBF16 ? Search<BF16>(search).Find() : Search<float>(search).Find();
}

int LowestBounds(std::span<const CandidateBlock> blocks, std::span<Nearest> lowest) {
  const D d;
  const DI di;
  size_t n = 0;
  float limit = kInfinity;
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const M alive = Candidates(di, hn::LoadU(di, blocks[b].partners + s));
      const M open = hn::Lt(hn::LoadU(d, blocks[b].bounds + s), hn::Set(d, limit));
      if (hn::AllFalse(d, hn::And(open, alive))) continue;
      for (int t = s; t < s + kLanes; ++t) {
        const float bound = blocks[b].bounds[t];
        if (blocks[b].partners[t] == 0 || !(bound < limit)) continue;
        size_t at = n < lowest.size() ? n++ : n - 1;
        for (; at > 0 && bound < lowest[at - 1].distance; --at) lowest[at] = lowest[at - 1];
        lowest[at] = {bound, static_cast<int32_t>(b * kBlockSlots) + t};
        if (n == lowest.size()) limit = lowest[n - 1].distance;
      }
    }
  }
  return static_cast<int>(n);
}

PairBound LowestBound(std::span<const CandidateBlock> blocks) {
  const D d;
  const DI di;
  const auto oldest = [&](int32_t i) {
    return blocks[static_cast<size_t>(i) / kBlockSlots].oldest[i % kBlockSlots];
  };
  unsigned long long lowest_order = 0;
  PairBound lowest = {kInfinity, -1, -1};
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const V bounds = hn::LoadU(d, blocks[b].bounds + s);
      const M alive = Candidates(di, hn::LoadU(di, blocks[b].partners + s));
      const M open = hn::And(alive, hn::Le(bounds, hn::Set(d, lowest.bound)));
      if (hn::AllFalse(d, open)) continue;
      for (int t = s; t < s + kLanes; ++t) {
        const float bound = blocks[b].bounds[t];
        if (blocks[b].partners[t] == 0 || !(bound <= lowest.bound) || !(bound < kInfinity))
          continue;
        const auto i = static_cast<int32_t>(b * kBlockSlots) + t;
        const int32_t partner = blocks[b].partners[t] - 1;
        const unsigned long long order = partner < 0 ? 0 : OrderOfPair(oldest(i), oldest(partner));
        if (bound == lowest.bound && order >= lowest_order) continue;
        const bool is_low = partner >= 0 && oldest(i) < oldest(partner);
        lowest = {bound, is_low ? i : std::max(partner, -1), is_low ? partner : i};
        lowest_order = order;
      }
    }
  }
  return lowest;
}

void ValueSizes(std::span<const CandidateBlock> blocks, DType dtype, int value_stride,
                float* sizes) {
  const auto stride = static_cast<size_t>(value_stride);
  for (const CandidateBlock& block : blocks) {
    for (size_t s = 0; s < kBlockSlots; ++s) {
      *sizes++ = std::sqrt(
          dtype == DType::kBF16
              ? ValueDistance(nullptr, static_cast<const BF16*>(block.values) + s * stride,
                              value_stride)
              : ValueDistance(nullptr, static_cast<const float*>(block.values) + s * stride,
                              value_stride));
    }
  }
}

float SquaredNorm(const void* value, DType dtype, int value_stride) {
  return dtype == DType::kBF16
             ? ValueDistance(nullptr, static_cast<const BF16*>(value), value_stride)
             : ValueDistance(nullptr, static_cast<const float*>(value), value_stride);
}

}  // namespace
}  // namespace ovq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq {

HWY_EXPORT(FillKeyDistances);
HWY_EXPORT(FindNearest);
HWY_EXPORT(LowestBound);
HWY_EXPORT(LowestBounds);
HWY_EXPORT(SquaredNorm);
HWY_EXPORT(ValueSizes);

void KeyDistancesCpu(const KeyDistances& batch) { HWY_DYNAMIC_DISPATCH(FillKeyDistances)(batch); }

Nearest FindNearestCpu(const NearestSearch& search) {
  return HWY_DYNAMIC_DISPATCH(FindNearest)(search);
}

PairBound LowestBoundCpu(std::span<const CandidateBlock> blocks) {
  return HWY_DYNAMIC_DISPATCH(LowestBound)(blocks);
}

int LowestBoundsCpu(std::span<const CandidateBlock> blocks, std::span<Nearest> lowest) {
  return HWY_DYNAMIC_DISPATCH(LowestBounds)(blocks, lowest);
}

void ValueSizesCpu(std::span<const CandidateBlock> blocks, DType dtype, int value_stride,
                   float* sizes) {
  HWY_DYNAMIC_DISPATCH(ValueSizes)(blocks, dtype, value_stride, sizes);
}

float SquaredNormCpu(const void* value, DType dtype, int value_stride) {
  return HWY_DYNAMIC_DISPATCH(SquaredNorm)(value, dtype, value_stride);
}

}  // namespace ovq
#endif  // HWY_ONCE
