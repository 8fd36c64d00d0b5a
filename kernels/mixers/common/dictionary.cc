#include "kernels/mixers/common/dictionary.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ovq::kernels {
namespace {

constexpr char kNoUnitKeys[] = "where keys have no unit norm (qk_norm unit or l2)";

bool HasUnitKeys(const DictionaryConfig& config) {
  const HeadNorm norm = config.input.norm;
  return norm == HeadNorm::kUnit || norm == HeadNorm::kL2;
}

// Fails on a variance where a slot's mean key does not tell it, or where scores have no bias.
void CheckVariance(const FieldReaders& from, const DictionaryConfig& config) {
  if (!from.ok()) return;
  if (config.rule.merge_variance != 0 && !HasUnitKeys(config)) {
    from.section.Fail("merge_variance", absl::StrCat("expected 0 ", kNoUnitKeys, ", got ",
                                                     config.rule.merge_variance));
  }
  if (config.variance == 0) return;
  for (const auto& [is_wrong, why] :
       {std::pair(!HasUnitKeys(config), kNoUnitKeys),
        {config.normalize_centroids,
         "with normalize_centroids, which hides how far keys are apart"},
        {config.counts_for_rates_only, "with counts_for_rates_only, as it is added to ln count"}}) {
    if (!is_wrong) continue;
    from.section.Fail("variance", absl::StrCat("expected 0 ", why, ", got ", config.variance));
  }
}

}  // namespace

bool MayHaveMergeVariance(const DictionaryConfig& config) { return HasUnitKeys(config); }

bool MayHaveVariance(const DictionaryConfig& config) {
  return HasUnitKeys(config) && !config.normalize_centroids && !config.counts_for_rates_only;
}

void ReadRuleFields(AttrReader& section, DictionaryConfig& config) {
  constexpr double kMaxValueWeight = 1e6, kMaxVariance = 1e3;
  section.Float("value_weight", config.rule.value_weight, 0, kMaxValueWeight);
  section.Float("merge_variance", config.rule.merge_variance, 0, kMaxVariance);
  section.Int("pinned_tokens", config.rule.pinned_tokens, 0, kMaxSlotCap);
  section.Int("recent_tokens", config.rule.recent_tokens, 0, kMaxSlotCap);
  section.Float("variance", config.variance, 0, kMaxVariance);
}

void ReadDictionary(const FieldReaders& from, int longest_on_cuda, DictionaryConfig& config) {
  AttrReader& section = from.section;
  ReadAttention(from, config);
  // Below 2 the first chunk would leave OVQ's dictionary empty: n(L) = floor(L N / (L + N)) = 0.
  const int longest = from.device == Device::kCuda ? longest_on_cuda : kMaxChunkLen;
  section.Int("chunk_size", config.chunk_len, 2, longest);
  section.Int("max_centroids", config.default_slot_cap, kMinSlotCap, kMaxSlotCap);
  section.Bool("normalize_centroids", config.normalize_centroids);
  section.Bool("min_state_size", config.min_state_size);
  section.Bool("counts_for_rates_only", config.counts_for_rates_only);
  section.Bool("delta_rule", config.delta_rule);
  ReadRuleFields(section, config);
  CheckVariance(from, config);
}

void RefuseVariants(AttrReader& section, const DictionaryConfig& config, const char* rule) {
  for (const auto& [field, is_set] : {std::pair("normalize_centroids", config.normalize_centroids),
                                      {"min_state_size", config.min_state_size},
                                      {"counts_for_rates_only", config.counts_for_rates_only},
                                      {"delta_rule", config.delta_rule}}) {
    if (is_set) section.Fail(field, absl::StrCat("expected false for ", rule, ", got true"));
  }
}

DictionaryAttention::DictionaryAttention(const StateSpec& spec, const DictionaryConfig& config,
                                         const Growth& law, const std::vector<StateField>& own,
                                         bool has_counts)
    : Attention(spec, config), config(config), has_counts(has_counts) {
  std::vector<StateField> block;
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    if (has_counts) {
      block.push_back({"counts", DType::kU32, {kBlockSlots}});
      block.push_back({"log_counts", DType::kF32, {kBlockSlots}});
    }
    block.push_back({"keys", dtype, {key_channels(), kBlockSlots}});
    block.push_back({"values", dtype, {kBlockSlots, value_channels()}});
    block.insert(block.end(), own.begin(), own.end());
  }
  state_.block = StateFields(std::move(block));
  state_.block_heads = shape.n_kv_heads;
  state_.growth = law.WithShares(spec.slot_shares);
  state_.span = config.chunk_len;
}

// A query is beta times a unit vector, with an l2 norm beta sqrt(d). The heads that share slots
// have betas of their own: slots get the mean of their squares.
void DictionaryAttention::LoadOwn(const MixerSpec& spec) {
  if (config.variance == 0) return;
  const std::vector<float> beta = spec.weights.HostFloats("self_attn.beta", {shape.n_heads});
  if (beta.empty()) return;
  const double sum_scale =
      config.variance / (2.0 * shape.group() * (input.norm == HeadNorm::kL2 ? 1 : shape.head_dim));
  std::vector<float> scales;
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    double squares = 0;
    for (int g = 0; g < shape.group(); ++g) {
      const double of_head = beta[head * shape.group() + g];
      squares += of_head * of_head;
    }
    scales.push_back(static_cast<float>(sum_scale * squares));
  }
  variance_scale_ = spec.context.Upload(scales);
}

AttentionBlocks DictionaryAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks = NewBlocks();
  blocks.wave_span = config.chunk_len;
  if (has_counts) {
    blocks.counts = where.BlockPlace(state_, kCounts);
    blocks.log_counts = where.BlockPlace(state_, kLogCounts);
    blocks.variance_scale = variance_scale_.as<float>();
    if (!config.counts_for_rates_only) blocks.dictionary_bias = {blocks.log_counts};
  }
  const int before_keys = has_counts ? 0 : kKeys;
  blocks.dictionary_keys = {where.BlockPlace(state_, kKeys - before_keys)};
  blocks.dictionary_values = {where.BlockPlace(state_, kValues - before_keys)};
  blocks.recent_spans = 1;
  blocks.recent_keys = {where.FixedPlace(state_, 0)};
  blocks.recent_values = {where.FixedPlace(state_, 1)};
  return blocks;
}

std::vector<StateExtent> DictionaryAttention::OwnExtents(const LayerState& where,
                                                         const TokenRange& tokens) const {
  const bool ends_chunk = tokens.end % config.chunk_len == 0;
  std::vector<StateExtent> extents;
  if (ends_chunk && config.delta_rule) {
    extents.push_back({where.fixed_offset, own_fixed_bytes});  // pending values are corrected
  } else {
    extents = RecentExtents(Blocks(where), tokens);
  }
  for (int part = 0; ends_chunk && part < state_.growth.parts(); ++part) {
    const int64_t live = state_.growth.LiveAt(tokens.end, tokens.slot_cap, part);
    std::ranges::copy(where.BlockExtents(state_, part, 0, NumBlocks(live)),
                      std::back_inserter(extents));
  }
  return extents;
}

}  // namespace ovq::kernels
