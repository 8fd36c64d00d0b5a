// What the updates at the end of a chunk have in common: keys grouped by where they go, counts.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"

namespace ovq::cuda {

// assignment[n] says where each of n keys goes. Gives the number of keys that go where key i does
// if it is the lowest of them, else 0, and sets next[i] to the key after it, -1 for the last.
__device__ inline int32_t LinkMembers(SharedPtr<const int32_t> assignment, int32_t n, int32_t i,
                                      SharedPtr<int32_t> next) {
  const int32_t mine = assignment[i];
  int32_t after = -1, members = 1;
  for (int32_t j = n - 1; j > i; --j) {
    const int32_t other = assignment[j];
    if (other != mine) continue;
    after = j;
    ++members;
  }
  next[i] = after;
  for (int32_t j = 0; j < i; ++j) {
    const int32_t other = assignment[j];
    if (other == mine) return 0;
  }
  return members;
}

// A count stays at 2^32 - 1 once it is there. Gives the new one as the divisor of a mean.
__device__ inline float AddToCount(int32_t members, uint32_t* count, float* log_count) {
  const uint64_t sum = uint64_t{*count} + static_cast<uint32_t>(members);
  *count = sum < 0xffffffffu ? static_cast<uint32_t>(sum) : 0xffffffffu;
  const auto divisor = static_cast<float>(*count);
  *log_count = logf(divisor);
  return divisor;
}

}  // namespace ovq::cuda
