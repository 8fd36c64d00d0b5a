// Nearest-candidate search: the inner loops of joining, renewing and merging on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/tensor.h"

namespace ovq::kernels {

struct CandidateBlock {
  const void* keys;        // [head_dim][64]
  const void* values;      // [64][value_stride]
  float* bounds;           // [64]
  int32_t* partners;       // [64]
  const uint32_t* oldest;  // [64]
};

struct KeyDistances {
  DType dtype;  // of the blocks' keys
  int head_dim;
  std::span<const CandidateBlock> blocks;
  std::span<const float* const> keys;  // [n] of [head_dim]
  std::span<float* const> distances;   // [n] of [blocks][64]
  float* wide;                         // [head_dim][64] scratch
};

// distances[n][b][s] = sum_c (keys[n][c] - keys of block b[c][s])^2 in float32, a chain of fused
// multiply-adds over c in each slot's own lane. The bits do not depend on the vector width or on
// how many keys are in one call.
void KeyDistancesCpu(const KeyDistances& batch);

struct NearestSearch {
  DType dtype;  // of values
  int value_stride;
  std::span<const CandidateBlock> blocks;
  const float* key_distances;  // [blocks][64] from `self`; lower bounds if `key` is set
  // If set, exact distances of keys are computed where the lower bounds are near enough.
  const float* key = nullptr;  // [head_dim]
  int head_dim = 0;
  // If `key` is set: key_distances belong to a place that is at most `drift` away from `self`.
  float drift = 0;
  float value_scale;   // w K / V
  const float* value;  // [value_stride]
  int32_t self;        // may be absent from `blocks`
  // PairBlocks::MergeVariance of every candidate by its index, `self` included; null: all are 0.
  const float* variances = nullptr;
  // The two candidates whose mean `self` is; others may still have them as partners. -1: none.
  int32_t gone[2] = {-1, -1};
};
struct Nearest {
  float distance = 0;  // infinity: no other candidate at a finite distance
  int32_t candidate = -1;
};

// Finds the candidate with the smallest |key - key|^2 + value_scale |value - value|^2 + (variance
// of `self` + variance) in float32; ties go to the oldest. Values: 16 partial sums, channel c in
// sum c % 16, folded in halves. Also updates the others: a candidate whose partner is in `gone`
// becomes stale. A stale candidate equal to `self` gets `self` as its partner if its bound is above
// 0 or its partner was in `gone` until now (then no older candidate is as near), so that equal
// tokens need no search each.
Nearest FindNearestCpu(const NearestSearch& search);

// The candidate with the lowest bound, with its partner. Stale candidates come first (low = -1,
// high = the candidate), then pairs by the older member's oldest token, then by the younger's.
// `low` is the older member. high = -1: no bound is finite.
struct PairBound {
  float bound;
  int32_t low, high;
};
PairBound LowestBoundCpu(std::span<const CandidateBlock> blocks);

// Fills `lowest` with the candidates that have the lowest of `distances` [blocks][64], in ascending
// order, ties to the lowest candidate index. Returns how many there are.
int NearestOnesCpu(std::span<const CandidateBlock> blocks, const float* distances,
                   std::span<Nearest> lowest);

// |value|^2, summed in FindNearestCpu's order. value: [value_stride] as a block stores it; int8 in
// units of its scale.
float SquaredNormCpu(const void* value, DType dtype, int value_stride);

}  // namespace ovq::kernels
