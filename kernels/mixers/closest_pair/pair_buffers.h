// What one thread needs to pass closest-pair chunks on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/ahead.h"
#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/least_distances.h"
#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {

struct PairBuffers {
  CandidateBlock* blocks;    // [blocks of rows and 2 of work]
  CandidateBlock* by_least;  // [blocks] with distances from below for bounds
  AheadRing joins, means;
  std::array<Moving, kMoving> moving;  // the latest used first
  Ahead moved;                         // key and value alone
  void* rounded;                       // [max(head_dim, value_head_dim)] in the state's dtype
  float* other;                        // the same in float
  float* wide;                         // [head_dim][64]
  float* sizes;                        // [blocks][64] |value|
  float* squares;                      // [blocks][64] |key|^2 + w K / V |value|^2
  uint32_t* packed;                    // of PackCandidatesCpu
  uint32_t* pairs;                     // of LeastDistances
  int32_t* slot_of;                    // [candidates of the work blocks]
};

inline size_t MostPairSlots(const ClosestPairStep& step) {
  return static_cast<size_t>(BlocksOf(step.blocks.live.bound) +
                             2 * BlocksOf(step.blocks.wave_span)) *
         kBlockSlots;
}

// Fewer tokens in one pass do not pay for what distances from below need.
inline constexpr int kLeastWorth = 4;
// Whether some pass of the step may take them.
inline bool FromBelow(const ClosestPairStep& step) {
  return step.blocks.dtype == DType::kBF16 && step.seqs.longest_run() >= kLeastWorth &&
         HasLeastDistances();
}

inline AheadRing MakeRing(ScratchScope& scope, const ClosestPairStep& step, int n) {
  const AttentionShape& shape = step.blocks.shape;
  const size_t slots = MostPairSlots(step);
  const auto value_stride = static_cast<size_t>(ValueStride(shape.value_head_dim));
  const std::span<Ahead> list(scope.Allocate<Ahead>(static_cast<size_t>(n)), n);
  for (Ahead& ahead : list) {
    ahead = {.of = {-1, -1},
             .key = scope.Allocate<float>(static_cast<size_t>(shape.head_dim)),
             .value = scope.Allocate<float>(value_stride),
             .distances = scope.Allocate<float>(slots),
             .is_least = false};
    std::fill_n(ahead.value, value_stride, 0.0f);
  }
  return {list};
}

inline std::array<Moving, kMoving> MakeMoving(ScratchScope& scope, const ClosestPairStep& step) {
  const AttentionShape& shape = step.blocks.shape;
  const auto channels =
      static_cast<size_t>(shape.head_dim) + static_cast<size_t>(shape.value_head_dim);
  std::array<Moving, kMoving> list;
  for (Moving& moving : list) {
    moving = {.mean = -1,
              .place = scope.Allocate<double>(channels),
              .least = scope.Allocate<float>(MostPairSlots(step))};
  }
  return list;
}

inline PairBuffers MakePairBuffers(ScratchScope& scope, const ClosestPairStep& step) {
  const AttentionShape& shape = step.blocks.shape;
  const int64_t work = 2 * BlocksOf(step.blocks.wave_span);
  const auto widest = static_cast<size_t>(std::max(shape.head_dim, shape.value_head_dim));
  const int value_stride = ValueStride(shape.value_head_dim);
  const size_t packed = FromBelow(step) ? MostPairSlots(step) / kBlockSlots *
                                              PackedBlockSize(shape.head_dim, value_stride)
                                        : 0;
  return {.blocks = scope.Allocate<CandidateBlock>(MostPairSlots(step) / kBlockSlots),
          .by_least = scope.Allocate<CandidateBlock>(MostPairSlots(step) / kBlockSlots),
          .joins = MakeRing(scope, step, std::min(kJoinsKept, 2 * step.seqs.longest_run())),
          .means = MakeRing(scope, step, std::min(kMeansKept, 4 * step.seqs.longest_run())),
          .moving = MakeMoving(scope, step),
          .moved = MakeRing(scope, step, 1).list[0],
          .rounded = scope.Allocate<float>(widest),
          .other = scope.Allocate<float>(widest),
          .wide = scope.Allocate<float>(static_cast<size_t>(shape.head_dim) * kBlockSlots),
          .sizes = scope.Allocate<float>(MostPairSlots(step)),
          .squares = scope.Allocate<float>(MostPairSlots(step)),
          .packed = scope.Allocate<uint32_t>(packed),
          .pairs = scope.Allocate<uint32_t>(LeastDistancesScratch(shape.head_dim, value_stride)),
          .slot_of = scope.Allocate<int32_t>(static_cast<size_t>(work) * kBlockSlots)};
}

}  // namespace ovq
