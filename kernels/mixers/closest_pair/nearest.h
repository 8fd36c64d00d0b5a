// One candidate against all others: the inner loop of joining, renewing and merging on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/tensor.h"

namespace ovq {

struct CandidateBlock {
  const void* keys;    // [head_dim][64]
  const void* values;  // [64][value_stride]
  float* bounds;       // [64]
  int32_t* partners;   // [64]
};

struct NearestSearch {
  DType dtype;  // of keys and values
  int head_dim;
  int value_stride;
  std::span<const CandidateBlock> blocks;
  float value_scale;   // w K / V
  const float* key;    // [head_dim]
  const float* value;  // [value_stride]
  int32_t self;        // is left out
};
struct Nearest {
  float distance = 0;  // infinity: no other is at a finite distance
  int32_t candidate = -1;
};

// The candidate with the smallest distance |key - key|^2 + value_scale |value - value|^2, ties to
// the lowest. A stale one that is no farther than its bound gets `self` as its partner.
// float32; keys: a chain of fused multiply-adds over the channels in each slot's lane; values: 16
// partial sums, channel c in sum c % 16, added up in halves. The same bits on any vector width,
// and whatever is skipped because its keys alone are too far apart.
Nearest FindNearestCpu(const NearestSearch& search);

// |value|^2 in the same order.
float SquaredNormCpu(const float* value, int value_stride);

}  // namespace ovq
