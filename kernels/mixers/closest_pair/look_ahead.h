// What is computed ahead of the tokens that need it, on the CPU: distances to slots and tokens,
// which stay as they are while a chunk passes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ovq {

// For how many in one pass over the slots: of tokens before they join, of means before they are
// made.
inline constexpr int kMaxJoinsAhead = 16, kMaxMergesAhead = 8;
// Tokens whose distances are kept, as they may merge soon.
inline constexpr int kCachedJoins = 64;
// Means whose distances are kept until they are made, or given up for newer ones.
inline constexpr int kCachedMeans = 32;

// Two candidates, the older one first; low = -1: candidate `high` alone.
struct Pair {
  int32_t low, high;
  bool operator==(const Pair&) const = default;
  // Not both of them can merge.
  bool Excludes(const Pair& other) const {
    return low >= 0 && other.low >= 0 && *this != other &&
           (low == other.low || low == other.high || high == other.low || high == other.high);
  }
};

// What a candidate will need to meet the others, or the mean of two.
struct LookAhead {
  Pair of;              // {-1, -1}: nothing
  float* key;           // [head_dim]
  float* value;         // [value_stride]
  float* distances;     // [blocks][64], of keys
  bool is_lower_bound;  // in their place what distances are no less than
};

// The newest take the places of the oldest.
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

// A mean that goes on merging: where it has come to before rounding, and what is known from there.
struct RunningMean {
  int32_t mean;         // candidate; -1: none
  double* place;        // [head_dim + value_head_dim]
  float* lower_bounds;  // [blocks][64], what distances from `place` are no less than
};
// The latest of them.
inline constexpr int kMaxRunningMeans = 4;

}  // namespace ovq
