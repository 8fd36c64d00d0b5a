#include "kernels/mixers/common/dictionary.h"

#include <utility>

namespace ovq::kernels {

void ReadPairRule(AttrReader& section, PairRule& rule) {
  constexpr double kMaxValueWeight = 1e6;
  section.Float("value_weight", rule.value_weight, 0, kMaxValueWeight);
  section.Int("pinned_tokens", rule.pinned_tokens, 0, kMaxSlotCap);
  section.Int("recent_tokens", rule.recent_tokens, 0, kMaxSlotCap);
}

void ReadDictionary(const FieldReaders& from, int longest_on_cuda, DictionaryConfig& config) {
  AttrReader& section = from.section;
  ReadAttention(from, config);
  // Below 2 the first chunk would leave OVQ's dictionary empty: n(L) = floor(L N / (L + N)) = 0.
  const int longest = from.device == Device::kCuda ? longest_on_cuda : 1 << 16;
  section.Int("chunk_size", config.chunk_len, 2, longest);
  section.Int("max_centroids", config.default_slot_cap, kMinSlotCap, kMaxSlotCap);
  section.Bool("normalize_centroids", config.normalize_centroids);
  section.Bool("min_state_size", config.min_state_size);
  section.Bool("counts_for_rates_only", config.counts_for_rates_only);
  section.Bool("delta_rule", config.delta_rule);
  ReadPairRule(section, config.rule);
}

DictionaryAttention::DictionaryAttention(const StateSpec& spec, const DictionaryConfig& config,
                                         const Growth& law, const std::vector<StateField>& own)
    : Attention(spec, config), config(config) {
  std::vector<StateField> block;
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    block.push_back({"counts", DType::kU32, {kBlockSlots}});
    block.push_back({"log_counts", DType::kF32, {kBlockSlots}});
    block.push_back({"keys", dtype, {key_channels(), kBlockSlots}});
    block.push_back({"values", dtype, {kBlockSlots, value_channels()}});
    block.insert(block.end(), own.begin(), own.end());
  }
  state_.block = StateFields(std::move(block));
  state_.block_heads = shape.n_kv_heads;
  state_.growth = law.WithShares(spec.slot_shares);
  state_.span = config.chunk_len;
}

AttentionBlocks DictionaryAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks = NewBlocks();
  blocks.wave_span = config.chunk_len;
  blocks.counts = where.BlockPlace(state_, kCounts);
  blocks.log_counts = where.BlockPlace(state_, kLogCounts);
  blocks.dictionary_keys = {where.BlockPlace(state_, kKeys)};
  blocks.dictionary_values = {where.BlockPlace(state_, kValues)};
  if (!config.counts_for_rates_only) blocks.dictionary_bias = {blocks.log_counts};
  blocks.recent_spans = 1;
  blocks.recent_keys = {where.FixedPlace(state_, 0)};
  blocks.recent_values = {where.FixedPlace(state_, 1)};
  return blocks;
}

}  // namespace ovq::kernels
