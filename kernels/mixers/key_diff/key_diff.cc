#include "kernels/mixers/key_diff/key_diff.h"

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq::kernels {

void ReadConfig(const FieldReaders& from, KeyDiffConfig& config) {
  ReadDictionary(from, kMaxChunkLen, config);
  RefuseVariants(from.section, config, "tokens that KeyDiff evicts");
  if (config.variance == 0) return;
  from.section.Fail(
      "variance", absl::StrCat("expected 0 for tokens that KeyDiff evicts, as no slot has several "
                               "keys, got ",
                               config.variance));
}

KeyDiffAttention::KeyDiffAttention(const StateSpec& spec, const KeyDiffConfig& config)
    : DictionaryAttention(
          spec, config,
          GrowsByChunk(config.chunk_len, config.default_slot_cap, /*min_state_size=*/true), {},
          /*has_counts=*/false) {
  const int64_t heads = shape.n_kv_heads, pending = NumBlocks(config.chunk_len);
  SetFixed({{"pending_keys", dtype, {heads, pending, key_channels(), kBlockSlots}},
            {"pending_values", dtype, {heads, pending, kBlockSlots, value_channels()}}});
}

void KeyDiffAttention::Attend(const LayerArgs& layer_args, const AttentionArgs& args) const {
  Dispatch<KeyDiffCpu, KeyDiffCuda>(layer_args.context, KeyDiffArgs{args, config.rule});
}

}  // namespace ovq::kernels
