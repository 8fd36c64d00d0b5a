// Parameters of the closest-pair rule and its schedule: when tokens join the candidates and when
// pairs merge. Both depend on the position alone, so results do not depend on how a sequence is
// split into batches, and no token costs much more than another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/mixers/state.h"

namespace ovq::kernels {

inline constexpr int64_t kMergesPerToken = 2;

struct PairRule {
  float value_weight = 0.5f;    // w
  float merge_variance = 0.0f;  // lambda: weight of both candidates' variances in a distance
  // K: |key|^2 after the norm, without its weights. 0: keys have no norm and K is measured.
  float key_size = 1;
  // The first tokens never merge, and KeyDiff never evicts them; the newest ones not yet.
  int32_t pinned_tokens = 0, recent_tokens = 0;

  constexpr bool measures_keys() const { return key_size == 0; }
  // Both numbers are limited for small caps: to a quarter of the cap and to half of it.
  constexpr int64_t EffectivePinnedTokens(int64_t slot_cap) const {
    return std::min<int64_t>(pinned_tokens, slot_cap / 4);
  }
  constexpr int64_t EffectiveRecentTokens(int64_t slot_cap) const {
    return std::min<int64_t>(recent_tokens, slot_cap / 2);
  }
  // After `position` tokens, the tokens before the returned one have joined the candidates, except
  // pinned ones. None join in the first half of the slot cap, so that short sessions pay nothing;
  // then two a token join until all but the recent ones have.
  constexpr int64_t JoinedAt(int64_t position, int64_t slot_cap) const {
    return std::max<int64_t>(
        0, std::min(2 * position - slot_cap, position - EffectiveRecentTokens(slot_cap)));
  }
};

// One head of a sequence during one chunk.
struct PairChunk {
  std::byte* session;
  int kv_head;
  int64_t begin;         // its first position
  int32_t length;        // L
  int64_t slot_cap;      // N of this layer
  int32_t n_slots;       // at the chunk's begin
  int32_t n_slots_next;  // at the chunk's end
  PairRule rule;

  constexpr int64_t n_merges() const { return int64_t{n_slots} + length - n_slots_next; }
  // Number of pairs merged after `offset` tokens of the chunk.
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
  // True if `token` of this chunk keeps a slot of its own at the chunk's end, whatever merges.
  constexpr bool KeepsOwnSlot(int64_t token) const {
    return IsPinned(token) || token >= JoinedAt(length);
  }
  constexpr int32_t slot_blocks() const { return static_cast<int32_t>(NumBlocks(n_slots)); }
  constexpr int32_t work_blocks() const { return static_cast<int32_t>(NumBlocks(length)); }
  constexpr int32_t n_blocks() const { return slot_blocks() + 2 * work_blocks(); }
  // Candidate indices run through the blocks of slots, then of tokens, then of merged slots.
  constexpr int32_t first_token() const { return slot_blocks() * kBlockSlots; }
  constexpr int32_t first_merged() const { return first_token() + work_blocks() * kBlockSlots; }
  constexpr int32_t end() const { return n_blocks() * kBlockSlots; }
  constexpr bool IsToken(int32_t i) const { return i >= first_token() && i < first_merged(); }
  // Position of the chunk's token with candidate index i.
  constexpr int64_t Position(int32_t i) const { return begin + i - first_token(); }
  // Candidate index of the sequence's token `token`, valid in its own chunk and until merges begin.
  constexpr int32_t FindCandidate(int64_t token) const {
    return static_cast<int32_t>(token < begin ? token : first_token() + (token - begin));
  }
  // True once slots are no longer the tokens in order; unjoined tokens must then be searched for.
  constexpr bool HasMerged() const { return begin > n_slots; }
};

}  // namespace ovq::kernels
