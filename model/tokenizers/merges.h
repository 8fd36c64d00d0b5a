// Merges applies byte-pair merges: repeatedly the adjacent pair of lowest rank, the leftmost of
// equal ranks, until no pair has a merge.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ovq::model {

// Immutable once filled; any thread.
class Merges {
 public:
  // Ranks follow the order of the calls. A repeated pair gets its last rank, as in
  // huggingface/tokenizers.
  void Add(int32_t left, int32_t right, int32_t result);
  void Reserve(size_t n);

  // Applies all merges to `symbols`. O(n log n).
  void Apply(std::vector<int32_t>& symbols) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };
  struct Pair {
    int32_t left, right, result;
  };

  const Merge* Find(int32_t left, int32_t right) const;
  void ApplyByScan(std::vector<int32_t>& symbols) const;
  void ApplyByHeap(std::vector<int32_t>& symbols) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // key: left << 32 | right
  std::vector<Pair> by_rank_;
};

}  // namespace ovq::model
