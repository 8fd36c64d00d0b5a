// Candidates against all others from below: what most of them are seen to be too far by, at half
// the cost of their distances. No result depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {

// Candidates that are met together.
inline constexpr int kMaxLowerBoundRows = 16;

// Rows hold bfloat16 in float32.
struct DistanceLowerBounds {
  struct Query {
    const float* key;     // [head_dim]
    const float* value;   // [value_stride]
    float* lower_bounds;  // [blocks][64]
  };
  int head_dim, value_stride;
  size_t n_blocks;
  const uint32_t* packed;  // of PackCandidatesCpu
  const float* squares;    // [blocks][64] |key|^2 + value_scale |value|^2
  float value_scale;       // w K / V
  std::span<const Query> rows;
  uint32_t* scratch;  // [DistanceLowerBoundsScratch()]
};

// Whether this machine has the instructions.
bool HasDistanceLowerBounds();

size_t DistanceLowerBoundsScratch(int head_dim, int value_stride);

// Blocks in bfloat16 as dot products read them: the key and then the value of every slot, two
// channels a word, [pairs][64] of every block. It takes as long as meeting a few candidates, so it
// is done once for all that a pass meets.
void PackCandidatesCpu(std::span<const CandidateBlock> blocks, int head_dim, int value_stride,
                       uint32_t* packed);
size_t PackedBlockSize(int head_dim, int value_stride);  // words

// lower_bounds = what is no more than |key - key|^2 + value_scale |value - value|^2 as
// FindNearestCpu computes it, from |x - y|^2 = |x|^2 + |y|^2 - 2 x . y: less by no more than 6e-4
// (|x|^2 + |y|^2).
void DistanceLowerBoundsCpu(const DistanceLowerBounds& batch);

// From below of x + share (y - x), in place of those of x; apart: |x - y|^2, rounded up.
//   |x + s (y - x) - z|^2 = (1 - s) |x - z|^2 + s |y - z|^2 - s (1 - s) |x - y|^2
void MoveLowerBoundsCpu(const float* of_y, float share, float apart, std::span<float> of_x);

}  // namespace ovq
