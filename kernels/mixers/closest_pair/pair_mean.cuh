// Mean of two candidates on CUDA, written by the threads of one block.
#pragma once

#include <cstdint>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/search.cuh"

namespace ovq::kernels::cuda {

// A thread does one rounding group; 1024 is the widest head.
static_assert(1024 / kRoundingGroup <= kPairThreads);

struct PairMean {
  int32_t low, high, mean;  // candidate indices
  float share;              // weight of `high`
};

// Stores the mean key or value. A thread does one group of channels. All threads of the block must
// call it.
template <class T>
__device__ void StoreMean(const PairBlocks<T>& at, [[maybe_unused]] const PairShared& block,
                          const PairMean& of, bool is_value) {
  const int n = is_value ? at.dv() : at.d(), stride = is_value ? 1 : kBlockSlots;
  const int begin = static_cast<int>(threadIdx.x) * kRoundingGroup, left = n - begin;
  const auto slot = [&](int32_t i) { return is_value ? at.ValueSlot(i) : at.KeySlot(i); };
  const SlotRow<T> of_low = slot(of.low), of_high = slot(of.high), mean = slot(of.mean);
  const T *low = of_low.data + begin * stride, *high = of_high.data + begin * stride;
  const float low_scale = of_low.scale(), high_scale = of_high.scale();
  float x[kRoundingGroup];
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) {
    x[c] = c < left ? WeightedMean(ToFloat(low[c * stride]) * low_scale,
                                   ToFloat(high[c * stride]) * high_scale, of.share)
                    : 0;
  }
  const RoundingKey key = at.Rounding(of.high, is_value);
  T* to = mean.data + begin * stride;
  if constexpr (Slots<T>::kScaled) {
    uint8_t exponent = Slots<T>::Exponent(block.ReduceMax(MagnitudeBits(x, kRoundingGroup)));
    T rounded[kRoundingGroup] = {};
    RoundGroup(x, left, key, static_cast<uint32_t>(begin), InverseExponentScale(exponent), rounded,
               1);
    for (int c = 0; c < kRoundingGroup; ++c) x[c] = ToFloat(rounded[c]) * ExponentScale(exponent);
    // Rounding down may let the mean fit a scale half as large.
    exponent = Slots<T>::Exponent(block.ReduceMax(MagnitudeBits(x, kRoundingGroup)));
    const float inverse = InverseExponentScale(exponent);
    for (int c = 0; c < kRoundingGroup && c < left; ++c) {
      to[c * stride] = NearestElement<T>(x[c], inverse);
    }
    if (threadIdx.x == 0) mean.SetExponent(exponent);
  } else {
    RoundGroup(x, left, key, static_cast<uint32_t>(begin), 1, to, static_cast<size_t>(stride));
  }
}

}  // namespace ovq::kernels::cuda
