#include "kernels/mixers/ovq/ovq.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ovq::kernels {
namespace {

enum Field { kPendingKeys, kPendingValues, kBestScore, kBestSlot };

}  // namespace

Growth GrowsByChunk(int chunk_len, int64_t default_slot_cap, bool min_state_size) {
  const char* law = min_state_size ? "n(t) = min(t, N)" : "n(t) = floor(t N / (t + N))";
  return {.name = absl::StrCat(law, " by chunks of ", chunk_len),
          .live =
              [chunk_len, min_state_size](int64_t position, int64_t slot_cap) {
                const int64_t t = position / chunk_len * chunk_len;
                return min_state_size ? std::min(t, slot_cap) : CentroidsAt(t, slot_cap);
              },
          .period = chunk_len,
          .default_slot_cap = default_slot_cap};
}

void ReadConfig(const FieldReaders& from, OvqConfig& config) {
  ReadDictionary(from, kMaxCudaChunkLen, config);
  if (!config.delta_rule || !from.model.ok() || config.shape.group() == 1) return;
  from.section.Fail(
      "delta_rule",
      absl::StrCat("expected false, as keys of shared heads have no one beta: "
                   "num_key_value_heads is ",
                   config.shape.n_kv_heads, ", num_attention_heads ", config.shape.n_heads));
}

OvqAttention::OvqAttention(const StateSpec& spec, const OvqConfig& config)
    : DictionaryAttention(
          spec, config,
          GrowsByChunk(config.chunk_len, config.default_slot_cap, config.min_state_size)) {
  const int64_t heads = shape.n_kv_heads, pending = NumBlocks(config.chunk_len);
  SetFixed({{"pending_keys", dtype, {heads, pending, key_channels(), kBlockSlots}},
            {"pending_values", dtype, {heads, pending, kBlockSlots, value_channels()}},
            {"best_score", DType::kF32, {heads, config.chunk_len}, {.least = -HUGE_VAL}},
            {"best_slot", DType::kI32, {heads, config.chunk_len}, {.is_slot = true}}});
}

// With a delta rule a key becomes a query by the factor that queries have: the head's beta, or the
// scale of a LayerNorm's.
void OvqAttention::LoadOwn(const MixerSpec& spec) {
  DictionaryAttention::LoadOwn(spec);
  if (!config.delta_rule) return;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(shape.head_dim)));
  if (input.norm == HeadNorm::kLayer) {
    const std::vector<float> scales(static_cast<size_t>(shape.n_heads), 1 / root);
    delta_scale_ = spec.context.Upload(scales);
  } else {
    delta_scale_ = spec.weights.Floats({{"self_attn.beta", shape.n_heads}},
                                       input.norm == HeadNorm::kL2 ? root : 1);
  }
}

AttentionBlocks OvqAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks = DictionaryAttention::Blocks(where);
  blocks.probe = true;
  blocks.best_score = where.FixedPlace(state_, kBestScore);
  blocks.best_slot = where.FixedPlace(state_, kBestSlot);
  blocks.merge = Merge::kKeysAndValues;
  blocks.normalizes = config.normalize_centroids;
  blocks.delta_scale = delta_scale_.as<float>();
  return blocks;
}

}  // namespace ovq::kernels
