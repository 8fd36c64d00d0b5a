// When candidates join and pairs merge: functions of the position alone, so that no split of a
// sequence shows and no token costs much more than another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mixers/state.h"

namespace ovq {

inline constexpr int64_t kMergesPerToken = 2;

// Candidates that have joined after `position` tokens: none for the first half of the slot cap, so
// that sessions which stay short pay nothing, then two a token until all have.
constexpr int64_t JoinedAt(int64_t position, int64_t slot_cap) {
  const int64_t joined = 2 * position - slot_cap;
  return joined < 0 ? 0 : joined < position ? joined : position;
}

// One head of a sequence while a chunk passes.
struct PairChunk {
  std::byte* session;
  int kv_head;
  int64_t begin;     // its first position
  int32_t length;    // L
  int64_t slot_cap;  // N, the layer's own
  int32_t n_rows;    // at its begin
  int32_t n_next;    // at its end

  constexpr int64_t n_merges() const { return int64_t{n_rows} + length - n_next; }
  // Pairs merged after `offset` of its tokens.
  constexpr int64_t MergedAt(int64_t offset) const {
    const int64_t merged = n_merges() - kMergesPerToken * (length - offset);
    return merged > 0 ? merged : 0;
  }
  constexpr int32_t row_blocks() const { return static_cast<int32_t>(BlocksOf(n_rows)); }
  constexpr int32_t work_blocks() const { return static_cast<int32_t>(BlocksOf(length)); }
  constexpr int32_t n_blocks() const { return row_blocks() + 2 * work_blocks(); }
  // Candidates are counted through the blocks of rows, of tokens, of merged rows.
  constexpr int32_t first_token() const { return row_blocks() * kBlockSlots; }
  constexpr int32_t first_merged() const { return first_token() + work_blocks() * kBlockSlots; }
  constexpr int32_t end() const { return n_blocks() * kBlockSlots; }
  // The candidate that the sequence's i-th token is until merges begin, and in its own chunk.
  constexpr int32_t CandidateOf(int64_t token) const {
    return static_cast<int32_t>(token < begin ? token : first_token() + (token - begin));
  }
};

}  // namespace ovq
