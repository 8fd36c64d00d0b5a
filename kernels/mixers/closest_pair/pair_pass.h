// One pass of tokens through one head's chunk on the CPU, and the scratch memory of its thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/distance_lower_bounds.h"
#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq::kernels {

// Two candidates, the older one first.
struct Pair {
  int32_t low, high;
  // The member that is not `one`.
  int32_t Other(int32_t one) const { return low + high - one; }
};

// A candidate's key, value and distances to all slots and tokens.
struct KnownDistances {
  int32_t candidate;  // -1: none
  float* key;         // [head_dim]
  float* value;       // [value_stride]
  float* distances;   // [blocks][64] of keys alone; with lower bounds, these of whole distances
};

// The distances that were computed last; a new entry replaces the oldest.
struct DistanceCache {
  std::span<KnownDistances> list;
  size_t next = 0;

  const KnownDistances* Find(int32_t candidate) const {
    const auto found = std::ranges::find(list, candidate, &KnownDistances::candidate);
    return found == list.end() ? nullptr : &*found;
  }
  KnownDistances& ReplaceOldest(int32_t candidate) {
    KnownDistances& replaced = list[next];
    next = (next + 1) % list.size();
    replaced.candidate = candidate;
    return replaced;
  }
  void Clear() {
    for (KnownDistances& known : list) known.candidate = -1;
  }
};
// Entries of a cache; a pass of n tokens needs 2 n at most.
inline constexpr int kCachedDistances = 96;

// A mean that keeps merging: its exact place, before rounding, and lower bounds from there.
struct RunningMean {
  int32_t mean;         // candidate index; -1: none
  double* place;        // [head_dim + value_head_dim]
  float* lower_bounds;  // [blocks][64], lower bounds of the distances from `place`
};
// Number of running means that are tracked, the most recently used.
inline constexpr int kMaxRunningMeans = 4;

// Lower bounds do not pay in passes of fewer tokens.
inline constexpr int kMinLowerBoundTokens = 4;

// Scratch memory of one thread.
struct PairBuffers {
  CandidateBlock* blocks;  // [slot blocks + 2 work_blocks]
  DistanceCache cache;
  KnownDistances mean;                                // of the pair that merges
  std::array<RunningMean, kMaxRunningMeans> running;  // most recently used first
  void* rounded;       // [max(head_dim, value_head_dim)] in the state's dtype
  float* exact;        // likewise, in float
  float* wide;         // [head_dim][64]
  const float* zeros;  // [head_dim]
  float* variances;    // [blocks][64] NearestSearch::variances
  uint32_t* packed;    // PackedCandidates::pairs
  float* squares;      // PackedCandidates::squares
  uint32_t* queries;   // scratch of DistanceLowerBoundsCpu
  int32_t* new_slots;  // [candidates of the work blocks]
};

inline PairBuffers MakePairBuffers(ScratchScope& scope, const ClosestPairArgs& args) {
  const AttentionShape& shape = args.blocks.shape;
  const auto work_blocks = static_cast<size_t>(2 * NumBlocks(args.blocks.wave_span)),
             n_blocks = static_cast<size_t>(NumBlocks(args.blocks.live.bound)) + work_blocks,
             n_slots = n_blocks * kBlockSlots, d = static_cast<size_t>(shape.head_dim),
             dv = static_cast<size_t>(shape.value_head_dim);
  const int value_stride = ValueStride(shape.value_head_dim),
            longest = args.seqs.max_sequence_length();
  // Only some passes use lower bounds; no other batch pays for their memory.
  const size_t uses_lower_bounds = args.blocks.dtype == DType::kBF16 &&
                                   longest >= kMinLowerBoundTokens && HasDistanceLowerBounds();
  const size_t n_pairs = uses_lower_bounds * PackedPairs(shape.head_dim, value_stride);
  const auto known = [&](KnownDistances& to) {
    to = {-1, scope.Allocate<float>(d), scope.Allocate<float>(static_cast<size_t>(value_stride)),
          scope.Allocate<float>(n_slots)};
    std::fill_n(to.value, value_stride, 0.0f);
  };
  PairBuffers buffers = {.blocks = scope.Allocate<CandidateBlock>(n_blocks),
                         .cache = {},
                         .mean = {},
                         .running = {},
                         .rounded = scope.Allocate<float>(std::max(d, dv)),
                         .exact = scope.Allocate<float>(std::max(d, dv)),
                         .wide = scope.Allocate<float>(d * kBlockSlots),
                         .zeros = nullptr,
                         .variances = nullptr,
                         .packed = scope.Allocate<uint32_t>(n_slots * n_pairs),
                         .squares = scope.Allocate<float>(n_slots * uses_lower_bounds),
                         .queries = scope.Allocate<uint32_t>(kMaxLowerBoundQueries * n_pairs),
                         .new_slots = scope.Allocate<int32_t>(work_blocks * kBlockSlots)};
  const auto n_cached = static_cast<size_t>(std::min(kCachedDistances, 2 * longest));
  buffers.cache.list = {scope.Allocate<KnownDistances>(n_cached), n_cached};
  std::ranges::for_each(buffers.cache.list, known);
  known(buffers.mean);
  for (RunningMean& running : buffers.running) {
    running = {-1, scope.Allocate<double>(uses_lower_bounds * (d + dv)),
               scope.Allocate<float>(uses_lower_bounds * n_slots)};
  }
  if (args.rule.merge_variance > 0) {
    float* const zeros = scope.Allocate<float>(d);
    std::fill_n(zeros, d, 0.0f);
    buffers.zeros = zeros;
    buffers.variances = scope.Allocate<float>(n_slots);
  }
  return buffers;
}

// Tokens of a chunk that attended together.
template <class T>
struct PairPass {
  PairPass(const ClosestPairArgs& args, const PairChunk& pass_chunk, PairBuffers& pass_buffers)
      : at{args.blocks, args.places, pass_chunk}, buffers(pass_buffers) {
    for (int32_t b = 0; b < chunk.n_blocks(); ++b) {
      const int32_t first = b * kBlockSlots;
      buffers.blocks[b] = {at.keys(b), at.values(b), &at.Bound(first), &at.Partner(first),
                           &at.Oldest(first)};
    }
  }

  std::span<const CandidateBlock> Blocks(int64_t from, int64_t to) const {
    return {buffers.blocks + from, static_cast<size_t>(to - from)};
  }
  // Blocks that do not change during the pass.
  std::span<const CandidateBlock> SlotsAndTokens() const {
    return Blocks(0, chunk.slot_blocks() + NumBlocks(end));
  }
  std::span<const CandidateBlock> Means() const {
    const int64_t first = chunk.first_merged() / kBlockSlots;
    return Blocks(first, first + NumBlocks(n_means));
  }
  std::span<const CandidateBlock> All() const {
    return Blocks(0, chunk.first_merged() / kBlockSlots + NumBlocks(n_means));
  }

  // Index of the candidate that `token` becomes by joining. -1 if it is pinned, or in an invalid
  // state.
  int32_t FindCandidate(int64_t token) const {
    if (chunk.IsPinned(token)) return -1;
    if (token >= chunk.begin || !chunk.HasMerged()) return chunk.FindCandidate(token);
    for (int32_t b = 0; b < chunk.slot_blocks(); ++b) {
      const uint32_t* oldest = buffers.blocks[b].oldest;
      bool may_be_here = false;
      for (int s = 0; s < kBlockSlots; ++s) {
        may_be_here |= oldest[s] == static_cast<uint32_t>(token);
      }
      for (int32_t i = b * kBlockSlots; may_be_here && i < (b + 1) * kBlockSlots; ++i) {
        if (i < chunk.n_slots && at.IsUnjoinedToken(i, token)) return i;
      }
    }
    return -1;
  }

  const PairBlocks<T> at;
  const PairChunk& chunk = at.chunk;
  PairBuffers& buffers;
  int64_t begin = 0, end = 0;  // token offsets in the chunk
  int64_t n_means = 0;         // made in the chunk so far
};

}  // namespace ovq::kernels
