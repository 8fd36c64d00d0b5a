// Candidates against all others from below: what most of them are seen to be too far by, at half
// the cost of their distances. No result depends on it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {

// Candidates that are met together.
inline constexpr int kLeastTogether = 16;

// Keys and values hold bfloat16, those of `blocks` as such.
struct LeastDistances {
  struct Row {
    const float* key;    // [head_dim]
    const float* value;  // [value_stride]
    float* least;        // [blocks][64]
  };
  int head_dim, value_stride;
  std::span<const CandidateBlock> blocks;
  const float* squares;  // [blocks][64] |key|^2 + value_scale |value|^2
  float value_scale;     // w K / V
  std::span<const Row> rows;
  uint32_t* scratch;  // [LeastDistancesScratch()]
};

// Whether this machine has the instructions.
bool HasLeastDistances();

size_t LeastDistancesScratch(int head_dim, int value_stride);

// least = what is no more than |key - key|^2 + value_scale |value - value|^2 as FindNearestCpu
// computes it, from |x - y|^2 = |x|^2 + |y|^2 - 2 x . y: less by no more
// than 6e-4 (|x|^2 + |y|^2).
void LeastDistancesCpu(const LeastDistances& batch);

// From below of x + share (y - x), in place of those of x; apart: |x - y|^2, rounded up.
//   |x + s (y - x) - z|^2 = (1 - s) |x - z|^2 + s |y - z|^2 - s (1 - s) |x - y|^2
void MoveLeastDistancesCpu(const float* of_y, float share, float apart, std::span<float> of_x);

}  // namespace ovq
