// Candidates against all others: the inner loops of joining, renewing and merging on the CPU.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/tensor.h"

namespace ovq {

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
  std::span<const float* const> keys;  // each [head_dim]
  std::span<float* const> distances;   // of each key, [blocks][64]
  float* wide;                         // [head_dim][64] scratch
};

// |key - key|^2 of every key and every slot, in float32: a chain of fused multiply-adds over the
// channels in each slot's lane. The same bits on any vector width and with any company.
void KeyDistancesCpu(const KeyDistances& batch);

struct NearestSearch {
  DType dtype;  // of values
  int value_stride;
  std::span<const CandidateBlock> blocks;
  const float* key_distances;  // [blocks][64] of `self`; with a key no more than distances
  // Distances of keys are then computed where they are near enough.
  const float* key = nullptr;  // [head_dim]
  int head_dim = 0;
  // With a key: key_distances are those of a place that `self` is no further away from.
  float drift = 0;
  float value_scale;   // w K / V
  const float* value;  // [value_stride]
  // Sizes of values, for ||value| - |value|| <= |value - value|, which spares most of them where
  // one of two is a mean of many: [blocks][64] and that of `self`. Null: none are known.
  const float* sizes = nullptr;
  float size = 0;
  int32_t self;  // may be none of the blocks' candidates
  // Candidates that `self` is the mean of, partners of others still; -1: none.
  int32_t gone[2] = {-1, -1};
};
struct Nearest {
  float distance = 0;  // infinity: no other is at a finite distance
  int32_t candidate = -1;
};

// The candidate with the smallest distance |key - key|^2 + value_scale |value - value|^2, ties to
// the oldest. One whose partner is gone becomes stale. A stale one that equals `self` gets it as
// its partner, if its bound is above 0 or it was with one of the gone ones until now (no older one
// is then as near), so that equal tokens need no search each. float32; values: 16 partial sums,
// channel c in sum c % 16, added up in halves.
Nearest FindNearestCpu(const NearestSearch& search);

// The pair of the candidate with the lowest bound. Stale candidates come first (low = -1, high =
// the candidate), then pairs with the oldest low, of these with the oldest high; low is the older
// one of two. high = -1: no bound is finite.
struct PairBound {
  float bound;
  int32_t low, high;
};
PairBound LowestBoundCpu(std::span<const CandidateBlock> blocks);

// The lowest bounds, in ascending order, ties to the lowest candidate; how many there are.
int LowestBoundsCpu(std::span<const CandidateBlock> blocks, std::span<Nearest> lowest);

// sizes[blocks][64] = |value| of every slot.
void ValueSizesCpu(std::span<const CandidateBlock> blocks, DType dtype, int value_stride,
                   float* sizes);

// |value|^2 in the order of FindNearestCpu. value: [value_stride] as a block holds it, of int8 in
// units of its scale.
float SquaredNormCpu(const void* value, DType dtype, int value_stride);

}  // namespace ovq
