// Lower bounds of the distances from some candidates to all others. They cost less than exact
// distances and only rule candidates out, so no result depends on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq::kernels {

// Candidates packed for dot products: the bfloat16 key and then the value of every slot, two
// channels a word. Packing costs about as much as the distances of a few candidates, so a pass does
// it once for all its queries.
struct PackedCandidates {
  int head_dim, value_stride;
  float value_scale;  // w K / V
  size_t n_blocks;
  uint32_t* pairs;  // [blocks][PackedPairs][64]
  float* squares;   // [blocks][64] |key|^2 + value_scale |value|^2
};

// A key and a value (float32 elements with bfloat16 values), and where their lower bounds go.
struct LowerBoundQuery {
  const float* key;     // [head_dim]
  const float* value;   // [value_stride]
  float* lower_bounds;  // [blocks][64]
};
// Largest number of queries in one call.
inline constexpr int kMaxLowerBoundQueries = 16;

// True if this CPU computes several of them at once; otherwise they would not pay.
bool HasDistanceLowerBounds();

// Words of a packed slot, and of a query.
constexpr size_t PackedPairs(int head_dim, int value_stride) {
  return (static_cast<size_t>(head_dim) + 1) / 2 + (static_cast<size_t>(value_stride) + 1) / 2;
}

// Fills `pairs` and `squares`.
void PackCandidatesCpu(std::span<const CandidateBlock> blocks, const PackedCandidates& packed);

// lower_bounds <= |key - key|^2 + value_scale |value - value|^2 as FindNearestCpu computes it, from
// |x - y|^2 = |x|^2 + |y|^2 - 2 x . y. A bound is too low by at most 6e-4 (|x|^2 + |y|^2).
// scratch: [kMaxLowerBoundQueries][PackedPairs].
void DistanceLowerBoundsCpu(const PackedCandidates& packed,
                            std::span<const LowerBoundQuery> queries, uint32_t* scratch);

// Turns the lower bounds `of_x` of the distances from x into those from x + share (y - x), given
// those from y. `apart` is |x - y|^2, rounded up.
//   |x + s (y - x) - z|^2 = (1 - s) |x - z|^2 + s |y - z|^2 - s (1 - s) |x - y|^2
void MoveLowerBoundsCpu(const float* of_y, float share, float apart, std::span<float> of_x);

}  // namespace ovq::kernels
