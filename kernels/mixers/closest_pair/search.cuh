// Reductions and ranks within a thread block, for the search among one head's candidates. All
// threads of the block must call them.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"

namespace ovq::kernels::cuda {

inline constexpr int kPairThreads = 256;
inline constexpr int kPairWarps = kPairThreads / 32;

// Order of a minimum: by key, then by order, then by index. index = -1: none.
struct Lowest {
  float key = INFINITY;
  unsigned long long order = 0;
  int32_t index = -1;
};
__device__ inline Lowest PickLower(Lowest a, Lowest b) {
  if (b.index < 0) return a;
  if (a.index < 0) return b;
  if (a.key != b.key) return b.key < a.key ? b : a;
  if (a.order != b.order) return b.order < a.order ? b : a;
  return b.index < a.index ? b : a;
}

// Reductions over a thread block, and their shared memory.
struct PairShared {
  SharedPtr<float> keys;                 // [kPairWarps]
  SharedPtr<int32_t> indices;            // [kPairWarps]
  SharedPtr<unsigned long long> orders;  // [kPairWarps]

  static constexpr uint32_t kBytes = kPairWarps * 16;

  __device__ Lowest ReduceLowest(Lowest mine) const {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      mine = PickLower(mine, {__shfl_xor_sync(0xffffffffu, mine.key, lanes),
                              __shfl_xor_sync(0xffffffffu, mine.order, lanes),
                              __shfl_xor_sync(0xffffffffu, mine.index, lanes)});
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
      keys[threadIdx.x / 32] = mine.key;
      indices[threadIdx.x / 32] = mine.index;
      orders[threadIdx.x / 32] = mine.order;
    }
    __syncthreads();
    Lowest lowest;
    for (int warp = 0; warp < kPairWarps; ++warp) {
      const float key = keys[warp];
      const int32_t index = indices[warp];
      const unsigned long long order = orders[warp];
      lowest = PickLower(lowest, {key, order, index});
    }
    return lowest;
  }

  // The order of the sum is fixed.
  __device__ float ReduceSum(float mine) const {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      mine += __shfl_xor_sync(0xffffffffu, mine, lanes);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = mine;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < kPairWarps; ++warp) {
      const float part = keys[warp];
      sum += part;
    }
    return sum;
  }

  __device__ uint32_t ReduceMax(uint32_t mine) const {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, mine, lanes);
      mine = other > mine ? other : mine;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) orders[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int warp = 0; warp < kPairWarps; ++warp) {
      const unsigned long long part = orders[warp];
      mine = part > mine ? static_cast<uint32_t>(part) : mine;
    }
    return mine;
  }

  // Number of marked threads before this one; `total` is the number of marked threads.
  __device__ int32_t RankInBlock(bool marked, int32_t& total) const {
    const unsigned marks = __ballot_sync(0xffffffffu, marked ? 1 : 0);
    __syncthreads();
    if (threadIdx.x % 32 == 0) indices[threadIdx.x / 32] = __popc(marks);
    __syncthreads();
    int32_t before = __popc(marks & ((1u << (threadIdx.x % 32)) - 1));
    total = 0;
    for (int warp = 0; warp < kPairWarps; ++warp) {
      const int32_t of_warp = indices[warp];
      if (warp < static_cast<int>(threadIdx.x / 32)) before += of_warp;
      total += of_warp;
    }
    return before;
  }
};

}  // namespace ovq::kernels::cuda
