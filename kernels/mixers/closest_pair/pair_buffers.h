// Scratch memory of one thread for closest-pair chunks on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/distance_lower_bounds.h"
#include "kernels/mixers/closest_pair/look_ahead.h"
#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {

struct PairBuffers {
  CandidateBlock* blocks;              // [slot blocks + 2 work_blocks]
  CandidateBlock* lower_bound_blocks;  // [blocks] whose bounds are lower bounds of distances
  LookAheadRing joins, means;
  std::array<RunningMean, kMaxRunningMeans> running;  // most recently used first
  LookAhead rounded_mean;                             // key and value only
  void* rounded;       // [max(head_dim, value_head_dim)] in the state's dtype
  float* other;        // likewise, in float
  float* wide;         // [head_dim][64]
  float* sizes;        // [blocks][64] |value|
  float* squares;      // [blocks][64] |key|^2 + w K / V |value|^2
  uint32_t* packed;    // of PackCandidatesCpu
  uint32_t* pairs;     // of DistanceLowerBounds
  int32_t* new_slots;  // [candidates of the work blocks]
};

inline size_t MaxPairSlots(const ClosestPairArgs& args) {
  return static_cast<size_t>(NumBlocks(args.blocks.live.bound) +
                             2 * NumBlocks(args.blocks.wave_span)) *
         kBlockSlots;
}

// Lower bounds do not pay in passes of fewer tokens.
inline constexpr int kMinLowerBoundTokens = 4;
// True if some pass of the batch may use lower bounds.
inline bool UsesLowerBounds(const ClosestPairArgs& args) {
  return args.blocks.dtype == DType::kBF16 &&
         args.seqs.max_sequence_length() >= kMinLowerBoundTokens && HasDistanceLowerBounds();
}

inline LookAheadRing MakeRing(ScratchScope& scope, const ClosestPairArgs& args, int n) {
  const AttentionShape& shape = args.blocks.shape;
  const size_t slots = MaxPairSlots(args);
  const auto value_stride = static_cast<size_t>(ValueStride(shape.value_head_dim));
  const std::span<LookAhead> list(scope.Allocate<LookAhead>(static_cast<size_t>(n)), n);
  for (LookAhead& ahead : list) {
    ahead = {.of = {-1, -1},
             .key = scope.Allocate<float>(static_cast<size_t>(shape.head_dim)),
             .value = scope.Allocate<float>(value_stride),
             .distances = scope.Allocate<float>(slots),
             .is_lower_bound = false};
    std::fill_n(ahead.value, value_stride, 0.0f);
  }
  return {list};
}

inline std::array<RunningMean, kMaxRunningMeans> MakeRunningMeans(ScratchScope& scope,
                                                                  const ClosestPairArgs& args) {
  const AttentionShape& shape = args.blocks.shape;
  const auto channels =
      static_cast<size_t>(shape.head_dim) + static_cast<size_t>(shape.value_head_dim);
  std::array<RunningMean, kMaxRunningMeans> list;
  for (RunningMean& running : list) {
    running = {.mean = -1,
               .place = scope.Allocate<double>(channels),
               .lower_bounds = scope.Allocate<float>(MaxPairSlots(args))};
  }
  return list;
}

inline PairBuffers MakePairBuffers(ScratchScope& scope, const ClosestPairArgs& args) {
  const AttentionShape& shape = args.blocks.shape;
  const int64_t work = 2 * NumBlocks(args.blocks.wave_span);
  const auto widest = static_cast<size_t>(std::max(shape.head_dim, shape.value_head_dim));
  const int value_stride = ValueStride(shape.value_head_dim);
  const size_t packed = UsesLowerBounds(args) ? MaxPairSlots(args) / kBlockSlots *
                                                    PackedBlockSize(shape.head_dim, value_stride)
                                              : 0;
  return {
      .blocks = scope.Allocate<CandidateBlock>(MaxPairSlots(args) / kBlockSlots),
      .lower_bound_blocks = scope.Allocate<CandidateBlock>(MaxPairSlots(args) / kBlockSlots),
      .joins = MakeRing(scope, args, std::min(kCachedJoins, 2 * args.seqs.max_sequence_length())),
      .means = MakeRing(scope, args, std::min(kCachedMeans, 4 * args.seqs.max_sequence_length())),
      .running = MakeRunningMeans(scope, args),
      .rounded_mean = MakeRing(scope, args, 1).list[0],
      .rounded = scope.Allocate<float>(widest),
      .other = scope.Allocate<float>(widest),
      .wide = scope.Allocate<float>(static_cast<size_t>(shape.head_dim) * kBlockSlots),
      .sizes = scope.Allocate<float>(MaxPairSlots(args)),
      .squares = scope.Allocate<float>(MaxPairSlots(args)),
      .packed = scope.Allocate<uint32_t>(packed),
      .pairs = scope.Allocate<uint32_t>(DistanceLowerBoundsScratch(shape.head_dim, value_stride)),
      .new_slots = scope.Allocate<int32_t>(static_cast<size_t>(work) * kBlockSlots)};
}

}  // namespace ovq
