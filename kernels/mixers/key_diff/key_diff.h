// KeyDiff attention: softmax over a dictionary of slots and the tokens of the unfinished chunk. A
// slot is one token. Over the session's slot cap the tokens are evicted whose keys are most like
// the mean key, but for the first and the newest ones that PairRule spares. KeyDiff, Park et al.
// 2025, arXiv 2504.15364; the full rule is in README.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/mixers/common/dictionary.h"

namespace ovq::kernels {

struct KeyDiffConfig : DictionaryConfig {};
// OVQ's variants are refused.
void ReadConfig(const FieldReaders& from, KeyDiffConfig& config);

struct KeyDiffArgs : AttentionArgs {
  PairRule rule;
};

// The rows that a chunk's end chooses among: a head's n_old slots, then the chunk's tokens. This is
// the order of their tokens.
struct KeyDiffRows {
  const AttentionBlocks& blocks;
  const FullChunk& chunk;
  const PairRule& rule;

  constexpr int32_t size() const { return chunk.n_old + blocks.wave_span; }
  constexpr bool IsSlot(int32_t row) const { return row < chunk.n_old; }
  // Whether a row is never evicted. Rows are evicted at the cap only, where n_next is the cap.
  constexpr bool IsSpared(int32_t row) const {
    return row < rule.EffectivePinnedTokens(chunk.n_next) ||
           row >= size() - rule.EffectiveRecentTokens(chunk.n_next);
  }
  // The place of a row among the slots, or among the chunk's tokens.
  constexpr int32_t Index(int32_t row) const { return IsSlot(row) ? row : row - chunk.n_old; }
  // The number of rows from this one on that lie next to one another in its block.
  constexpr int32_t Run(int32_t row) const {
    return std::min(kBlockSlots - Index(row) % kBlockSlots,
                    (IsSlot(row) ? chunk.n_old : size()) - row);
  }
  // The block of a row's key, [head_dim][64], and of its value, [64][value_stride].
  template <class T>
  constexpr T* Keys(int32_t row) const {
    return Block<T>(IsSlot(row) ? blocks.dictionary_keys : blocks.recent_keys, row);
  }
  template <class T>
  constexpr T* Values(int32_t row) const {
    return Block<T>(IsSlot(row) ? blocks.dictionary_values : blocks.recent_values, row);
  }
  // The blocks of a slot after the chunk's end.
  template <class T>
  constexpr T* SlotKeys(int32_t slot) const {
    return blocks.dictionary_keys.place.At<T>(chunk.session, chunk.kv_head, slot / kBlockSlots);
  }
  template <class T>
  constexpr T* SlotValues(int32_t slot) const {
    return blocks.dictionary_values.place.At<T>(chunk.session, chunk.kv_head, slot / kBlockSlots);
  }

 private:
  template <class T>
  constexpr T* Block(const BlockPlaces& in, int32_t row) const {
    return in.place.At<T>(chunk.session, chunk.kv_head, Index(row) / kBlockSlots);
  }
};

// fixed: keys and values of the chunk's tokens
class KeyDiffAttention final : public DictionaryAttention {
 public:
  using Config = KeyDiffConfig;
  KeyDiffAttention(const StateSpec& spec, const KeyDiffConfig& config);

 private:
  void Attend(const LayerArgs& layer_args, const AttentionArgs& args) const override;
};

void KeyDiffCpu(DeviceContext& context, const KeyDiffArgs& args);
void KeyDiffCuda(DeviceContext& context, const KeyDiffArgs& args);

}  // namespace ovq::kernels
