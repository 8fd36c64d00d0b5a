// Mean of two candidates on CUDA, written by the threads of one block.
#pragma once

#include <cstdint>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/search.cuh"

namespace ovq::cuda {

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
  const auto row_of = [&](int32_t i) {
    return (is_value ? at.Value(i) : at.Key(i)) + begin * stride;
  };
  const auto scale_of = [&](int32_t i) {
    return is_value ? at.StoredValueScale(i) : at.KeyScale(i);
  };
  const T *low = row_of(of.low), *high = row_of(of.high);
  const float of_low = scale_of(of.low), of_high = scale_of(of.high);
  float x[kRoundingGroup];
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) {
    x[c] = c < left ? WeightedMean(ToFloat(low[c * stride]) * of_low,
                                   ToFloat(high[c * stride]) * of_high, of.share)
                    : 0;
  }
  const RoundingKey key = at.Rounding(of.high, is_value);
  T* mean = row_of(of.mean);
  if constexpr (kHasExponents<T>) {
    uint8_t exponent = ExponentFor(block.ReduceMax(MagnitudeBits(x, kRoundingGroup)));
    Int8 rounded[kRoundingGroup] = {};
    RoundGroup(x, left, key, static_cast<uint32_t>(begin), rounded, 1,
               InverseExponentScale(exponent));
    for (int c = 0; c < kRoundingGroup; ++c) x[c] = ToFloat(rounded[c]) * ExponentScale(exponent);
    // Rounding down may let the mean fit a scale half as large.
    exponent = ExponentFor(block.ReduceMax(MagnitudeBits(x, kRoundingGroup)));
    const float inverse = InverseExponentScale(exponent);
    for (int c = 0; c < kRoundingGroup && c < left; ++c) {
      mean[c * stride] = inverse == 0 ? Int8{0} : NearestInt8(x[c] * inverse);
    }
    if (threadIdx.x == 0) at.Exponent(of.mean, is_value) = {static_cast<int8_t>(exponent)};
  } else {
    RoundGroup(x, left, key, static_cast<uint32_t>(begin), mean, static_cast<size_t>(stride));
  }
}

}  // namespace ovq::cuda
