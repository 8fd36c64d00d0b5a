// What of the rule a model chooses, and when candidates join and pairs merge: functions of the
// position alone, so that no split of a sequence shows and no token costs much more than another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/mixers/state.h"

namespace ovq {

inline constexpr int64_t kMergesPerToken = 2;

struct PairRule {
  float value_weight = 0.5f;  // w
  // K: |key|^2 as the norm leaves it, but for its weights; 0: no norm, K is measured.
  float key_size = 1;
  // The first tokens, which never merge, and the newest, which do not yet.
  int32_t pinned_tokens = 0, recent_tokens = 0;

  // What a small cap leaves of them: a quarter of it and half of it.
  constexpr int64_t EffectivePinnedTokens(int64_t slot_cap) const {
    return std::min<int64_t>(pinned_tokens, slot_cap / 4);
  }
  constexpr int64_t EffectiveRecentTokens(int64_t slot_cap) const {
    return std::min<int64_t>(recent_tokens, slot_cap / 2);
  }
  // The tokens before this one have joined the candidates after `position` tokens, but for the
  // pinned ones: none for the first half of the slot cap, so that sessions which stay short pay
  // nothing, then two a token until all but the recent ones have.
  constexpr int64_t JoinedAt(int64_t position, int64_t slot_cap) const {
    return std::max<int64_t>(
        0, std::min(2 * position - slot_cap, position - EffectiveRecentTokens(slot_cap)));
  }
};

// One head of a sequence while a chunk passes.
struct PairChunk {
  std::byte* session;
  int kv_head;
  int64_t begin;         // its first position
  int32_t length;        // L
  int64_t slot_cap;      // N, the layer's own
  int32_t n_slots;       // at its begin
  int32_t n_slots_next;  // at its end
  PairRule rule;

  constexpr int64_t n_merges() const { return int64_t{n_slots} + length - n_slots_next; }
  // Pairs merged after `offset` of its tokens.
  constexpr int64_t MergedAt(int64_t offset) const {
    const int64_t merged = n_merges() - kMergesPerToken * (length - offset);
    return merged > 0 ? merged : 0;
  }
  constexpr int64_t JoinedAt(int64_t offset) const {
    return rule.JoinedAt(begin + offset, slot_cap);
  }
  constexpr bool IsPinned(int64_t token) const {
    return token < rule.EffectivePinnedTokens(slot_cap);
  }
  // Of a token of the chunk: a row of its own at the chunk's end, whatever merges.
  constexpr bool KeepsOwnSlot(int64_t token) const {
    return IsPinned(token) || token >= JoinedAt(length);
  }
  constexpr int32_t slot_blocks() const { return static_cast<int32_t>(NumBlocks(n_slots)); }
  constexpr int32_t work_blocks() const { return static_cast<int32_t>(NumBlocks(length)); }
  constexpr int32_t n_blocks() const { return slot_blocks() + 2 * work_blocks(); }
  // Candidates are counted through the blocks of slots, of tokens, of merged slots.
  constexpr int32_t first_token() const { return slot_blocks() * kBlockSlots; }
  constexpr int32_t first_merged() const { return first_token() + work_blocks() * kBlockSlots; }
  constexpr int32_t end() const { return n_blocks() * kBlockSlots; }
  // The candidate that the sequence's i-th token is in its own chunk, and until merges begin.
  constexpr int32_t FindCandidate(int64_t token) const {
    return static_cast<int32_t>(token < begin ? token : first_token() + (token - begin));
  }
  // Rows are no longer the tokens in their order: those that have not joined are to be searched.
  constexpr bool HasMerged() const { return begin > n_slots; }
};

}  // namespace ovq
