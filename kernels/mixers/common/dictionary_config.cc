#include "kernels/mixers/common/dictionary_config.h"

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

}  // namespace ovq::kernels
