#include <cstddef>
#include <limits>

#include "kernels/mixers/closest_pair/closest_pair.h"
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

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kSums = 16;
// Channels after which the keys of a block may turn out to be too far away, all of them.
constexpr int kCheckChannels = 16;
// Vectors of slots that are summed together.
constexpr int kVectors = 4;

// distances[kVectors * kLanes] = |key - keys of the slots|^2. False: every slot is farther away
// than its limit, and the distances are not whole.
template <class T>
HWY_INLINE bool KeyDistances(const float* key, const T* keys, int head_dim, const float* limits,
                             float* distances) {
  const D d;
  V sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int begin = 0; begin < head_dim; begin += kCheckChannels) {
    const int end = HWY_MIN(begin + kCheckChannels, head_dim);
    for (int i = begin; i < end; ++i) {
      const T* HWY_RESTRICT channel = keys + static_cast<size_t>(i) * kBlockSlots;
      const V x = hn::Set(d, key[i]);
      for (int v = 0; v < kVectors; ++v) {
        const V apart = hn::Sub(x, LoadWide(d, channel + v * kLanes));
        sum[v] = hn::MulAdd(apart, apart, sum[v]);
      }
    }
    auto beyond = hn::Gt(sum[0], hn::LoadU(d, limits));
    for (int v = 1; v < kVectors; ++v) {
      beyond = hn::And(beyond, hn::Gt(sum[v], hn::LoadU(d, limits + v * kLanes)));
    }
    if (hn::AllTrue(d, beyond)) return false;
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, distances + v * kLanes);
  return true;
}

// Adds up kSums partial sums, halves on halves.
HWY_INLINE float AddUp(float* sums) {
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// |x - y|^2 of values; `y` null: |x|^2.
template <class T>
HWY_INLINE float ValueDistance(const float* x, const T* y, int value_stride) {
  const D d;
  constexpr int kParts = kSums / kLanes;
  V sum[kParts];
  for (int v = 0; v < kParts; ++v) sum[v] = hn::Zero(d);
  for (int c = 0; c < value_stride; c += kSums) {
    for (int v = 0; v < kParts; ++v) {
      V apart = hn::LoadU(d, x + c + v * kLanes);
      if (y != nullptr) apart = hn::Sub(apart, LoadWide(d, y + c + v * kLanes));
      sum[v] = hn::MulAdd(apart, apart, sum[v]);
    }
  }
  float sums[kSums];
  for (int v = 0; v < kParts; ++v) hn::StoreU(sum[v], d, sums + v * kLanes);
  return AddUp(sums);
}

// How far away a candidate may be and still matter: nearer than the nearest so far, or within its
// own bound. False: there is none in the block.
bool SetLimits(const NearestSearch& search, int32_t first, float nearest, float* limits) {
  const CandidateBlock& block = search.blocks[static_cast<size_t>(first / kBlockSlots)];
  bool any = false;
  for (int s = 0; s < kBlockSlots; ++s) {
    const int32_t partner = block.partners[s];
    const bool is_other = partner != 0 && first + s != search.self;
    const float limit = partner == kStalePartner ? HWY_MAX(nearest, block.bounds[s]) : nearest;
    limits[s] = is_other ? limit : -std::numeric_limits<float>::infinity();
    any |= is_other;
  }
  return any;
}

template <class T>
void SearchBlock(const NearestSearch& search, int32_t first, Nearest& nearest) {
  const CandidateBlock& block = search.blocks[static_cast<size_t>(first / kBlockSlots)];
  float limits[kBlockSlots], distances[kBlockSlots];
  if (!SetLimits(search, first, nearest.distance, limits)) return;
  constexpr int kRun = kVectors * kLanes;
  for (int begin = 0; begin < kBlockSlots; begin += kRun) {
    if (!KeyDistances(search.key, static_cast<const T*>(block.keys) + begin, search.head_dim,
                      limits + begin, distances + begin)) {
      continue;
    }
    for (int s = begin; s < begin + kRun; ++s) {
      const bool stale = block.partners[s] == kStalePartner;
      const float limit = stale ? limits[s] : HWY_MIN(limits[s], nearest.distance);
      if (!(distances[s] <= limit)) continue;
      const float distance =
          distances[s] +
          search.value_scale *
              ValueDistance(search.value,
                            static_cast<const T*>(block.values) +
                                static_cast<size_t>(s) * static_cast<size_t>(search.value_stride),
                            search.value_stride);
      if (distance < nearest.distance) nearest = {distance, first + s};
      if (stale && distance <= block.bounds[s]) {
        block.bounds[s] = distance;
        block.partners[s] = search.self + 1;
      }
    }
  }
}

Nearest FindNearest(const NearestSearch& search) {
  Nearest nearest = {std::numeric_limits<float>::infinity(), -1};
  const auto n = static_cast<int32_t>(search.blocks.size()) * kBlockSlots;
  for (int32_t first = 0; first < n; first += kBlockSlots) {
    if (search.dtype == DType::kBF16) {
      SearchBlock<BF16>(search, first, nearest);
    } else {
      SearchBlock<float>(search, first, nearest);
    }
  }
  return nearest;
}

float SquaredNorm(const float* value, int value_stride) {
  return ValueDistance<float>(value, nullptr, value_stride);
}

}  // namespace
}  // namespace ovq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq {

HWY_EXPORT(FindNearest);
HWY_EXPORT(SquaredNorm);

Nearest FindNearestCpu(const NearestSearch& search) {
  return HWY_DYNAMIC_DISPATCH(FindNearest)(search);
}

float SquaredNormCpu(const float* value, int value_stride) {
  return HWY_DYNAMIC_DISPATCH(SquaredNorm)(value, value_stride);
}

}  // namespace ovq
#endif  // HWY_ONCE
