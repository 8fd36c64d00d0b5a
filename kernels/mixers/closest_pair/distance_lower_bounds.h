// Lower bounds of the distances from some candidates to all others, at half the cost of exact
// distances. They only rule candidates out, so no result depends on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {

// Largest number of queries in one call.
inline constexpr int kMaxLowerBoundRows = 16;

// Arguments of DistanceLowerBoundsCpu. Query elements are float32 with bfloat16 values.
struct DistanceLowerBounds {
  struct Query {
    const float* key;     // [head_dim]
    const float* value;   // [value_stride]
    float* lower_bounds;  // [blocks][64]
  };
  int head_dim, value_stride;
  size_t n_blocks;
  const uint32_t* packed;  // [blocks] of PackCandidatesCpu
  const float* squares;    // [blocks][64] |key|^2 + value_scale |value|^2
  float value_scale;       // w K / V
  std::span<const Query> rows;
  uint32_t* scratch;  // [DistanceLowerBoundsScratch()] words
};

// True if this CPU has AVX-512 BF16.
bool HasDistanceLowerBounds();

size_t DistanceLowerBoundsScratch(int head_dim, int value_stride);

// Packs bfloat16 blocks for dot products: the key and then the value of every slot, two channels a
// word, [pairs][64] words a block. Packing costs about as much as the distances of a few
// candidates,
// so a pass does it once for all its queries.
void PackCandidatesCpu(std::span<const CandidateBlock> blocks, int head_dim, int value_stride,
                       uint32_t* packed);
size_t PackedBlockSize(int head_dim, int value_stride);  // words

// lower_bounds <= |key - key|^2 + value_scale |value - value|^2 as FindNearestCpu computes it, from
// |x - y|^2 = |x|^2 + |y|^2 - 2 x . y. A bound is too low by at most 6e-4 (|x|^2 + |y|^2).
void DistanceLowerBoundsCpu(const DistanceLowerBounds& batch);

// Turns the lower bounds `of_x` of the distances from x into those from x + share (y - x), given
// those from y. `apart` is |x - y|^2, rounded up.
//   |x + s (y - x) - z|^2 = (1 - s) |x - z|^2 + s |y - z|^2 - s (1 - s) |x - y|^2
void MoveLowerBoundsCpu(const float* of_y, float share, float apart, std::span<float> of_x);

}  // namespace ovq
