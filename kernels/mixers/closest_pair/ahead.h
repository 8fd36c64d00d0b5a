// What is computed ahead of the tokens that need it, on the CPU: distances to rows and tokens,
// which stay as they are while a chunk passes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ovq {

// For how many in one pass over the rows: of tokens before they join, of means before they are
// made.
inline constexpr int kJoinsAhead = 16, kMergesAhead = 8;
// Tokens whose distances are kept, as they may merge soon.
inline constexpr int kJoinsKept = 64;
// Means whose distances are kept until they are made, or given up for newer ones.
inline constexpr int kMeansKept = 32;

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
struct Ahead {
  Pair of;           // {-1, -1}: nothing
  float* key;        // [head_dim]
  float* value;      // [value_stride]
  float* distances;  // [blocks][64], of keys
  bool is_least;     // in their place what distances are no less than
};

// The newest take the places of the oldest.
struct AheadRing {
  std::span<Ahead> list;
  size_t next = 0;

  Ahead* Find(const Pair& pair) const {
    const auto found = std::ranges::find(list, pair, &Ahead::of);
    return found == list.end() ? nullptr : &*found;
  }
  Ahead& Take(const Pair& pair) {
    Ahead& taken = list[next];
    next = (next + 1) % list.size();
    taken.of = pair;
    return taken;
  }
  void Clear() {
    for (Ahead& ahead : list) ahead.of = {-1, -1};
  }
};

// A mean that goes on merging: where it has come to before rounding, and what is known from there.
struct Moving {
  int32_t mean;   // candidate; -1: none
  double* place;  // [head_dim + value_head_dim]
  float* least;   // [blocks][64], what distances from `place` are no less than
};
// The latest of them.
inline constexpr int kMoving = 4;

}  // namespace ovq
