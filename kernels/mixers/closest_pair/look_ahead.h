// Buffers for distances that the CPU computes before they are needed. Slots and tokens do not
// change
// while a chunk passes, so such distances stay valid.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ovq {

// Largest number of look-ahead entries computed in one pass over the slots: tokens that will join,
// and means that will be made.
inline constexpr int kMaxJoinsAhead = 16, kMaxMergesAhead = 8;
// Number of cached distance vectors of joined tokens, which may merge soon.
inline constexpr int kCachedJoins = 64;
// Number of cached distance vectors of means not made yet; the oldest are dropped first.
inline constexpr int kCachedMeans = 32;

// Two candidates, the older one first. low = -1: candidate `high` alone.
struct Pair {
  int32_t low, high;
  bool operator==(const Pair&) const = default;
  // True if the two pairs share a candidate, so that only one of them can merge.
  bool Excludes(const Pair& other) const {
    return low >= 0 && other.low >= 0 && *this != other &&
           (low == other.low || low == other.high || high == other.low || high == other.high);
  }
};

// Key, value and distances of a candidate, or of the mean of a pair.
struct LookAhead {
  Pair of;              // {-1, -1}: unused
  float* key;           // [head_dim]
  float* value;         // [value_stride]
  float* distances;     // [blocks][64], of keys alone
  bool is_lower_bound;  // `distances` holds lower bounds instead
};

// Ring buffer: a new entry replaces the oldest.
struct LookAheadRing {
  std::span<LookAhead> list;
  size_t next = 0;

  LookAhead* Find(const Pair& pair) const {
    const auto found = std::ranges::find(list, pair, &LookAhead::of);
    return found == list.end() ? nullptr : &*found;
  }
  LookAhead& ReplaceOldest(const Pair& pair) {
    LookAhead& replaced = list[next];
    next = (next + 1) % list.size();
    replaced.of = pair;
    return replaced;
  }
  void Clear() {
    for (LookAhead& ahead : list) ahead.of = {-1, -1};
  }
};

// A mean that keeps merging: its exact place, before rounding, and lower bounds from there.
struct RunningMean {
  int32_t mean;         // candidate index; -1: none
  double* place;        // [head_dim + value_head_dim]
  float* lower_bounds;  // [blocks][64], lower bounds of the distances from `place`
};
// Number of running means that are tracked, the most recently used.
inline constexpr int kMaxRunningMeans = 4;

}  // namespace ovq
