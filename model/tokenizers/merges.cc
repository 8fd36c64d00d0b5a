#include "model/tokenizers/merges.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace ovq::model {
namespace {

// Up to this many symbols, scanning all ranks for the lowest is faster than a heap.
constexpr size_t kMostScanned = 32;
constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

uint64_t Key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

void Merges::Reserve(size_t n) {
  merges_.reserve(n);
  by_rank_.reserve(n);
}

void Merges::Add(int32_t left, int32_t right, int32_t result) {
  const auto rank = static_cast<uint32_t>(by_rank_.size());
  merges_[Key(left, right)] = {rank, result};
  by_rank_.push_back({left, right, result});
}

const Merges::Merge* Merges::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(Key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Merges::Apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kMostScanned ? ApplyByScan(symbols) : ApplyByHeap(symbols);
}

void Merges::ApplyByScan(std::vector<int32_t>& symbols) const {
  size_t n = symbols.size();
  Merge found[kMostScanned];  // [i]: merge of symbols i and i + 1
  const auto look = [&](size_t i) {
    const Merge* merge = Find(symbols[i], symbols[i + 1]);
    found[i] = merge ? *merge : Merge{kNoRank, 0};
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    const Merge* lowest = std::min_element(
        found, found + n - 1, [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (lowest->rank == kNoRank) break;
    const size_t at = lowest - found;
    symbols[at] = lowest->result;
    symbols.erase(symbols.begin() + at + 1);
    std::copy(found + std::min(at + 2, n), found + n, found + at + 1);
    --n;
    if (at > 0) look(at - 1);
    if (at + 1 < n) look(at);
  }
}

// Symbols are linked by index. A merged symbol keeps the index of its left part, the right one is
// marked as gone. The heap holds rank << 32 | index; an entry is stale if the pair at its index no
// longer has its rank.
void Merges::ApplyByHeap(std::vector<int32_t>& symbols) const {
  constexpr int32_t kGone = -1;
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> next(n), previous(n);
  std::vector<uint64_t> heap;
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
    if (i + 1 == n) break;
    if (const Merge* merge = Find(symbols[i], symbols[i + 1])) {
      heap.push_back(uint64_t{merge->rank} << 32 | i);
    }
  }
  std::ranges::make_heap(heap, std::greater<>());
  const auto push = [&](uint32_t at) {
    if (const Merge* merge = Find(symbols[at], symbols[next[at]])) {
      heap.push_back(uint64_t{merge->rank} << 32 | at);
      std::ranges::push_heap(heap, std::greater<>());
    }
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const auto at = static_cast<uint32_t>(heap.back());
    const Pair& pair = by_rank_[heap.back() >> 32];
    heap.pop_back();
    const uint32_t right = symbols[at] == pair.left ? next[at] : kEnd;
    if (right == kEnd || symbols[right] != pair.right) continue;
    symbols[at] = pair.result;
    symbols[right] = kGone;
    next[at] = next[right];
    if (next[at] != kEnd) {
      previous[next[at]] = at;
      push(at);
    }
    if (previous[at] != kEnd) push(previous[at]);
  }
  std::erase(symbols, kGone);
}

}  // namespace ovq::model
