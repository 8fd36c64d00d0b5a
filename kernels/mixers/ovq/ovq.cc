#include "kernels/mixers/ovq/ovq.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace {

enum Field { kPendingKeys, kPendingValues, kBestScore, kBestSlot };
// Block fields of one head.
enum BlockField { kCounts, kLogCounts, kKeys, kValues };

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
    : OvqAttention(InState(spec, config)) {}

OvqAttention::OvqAttention(const OvqConfig& config)
    : Attention{.shape = config.shape}, config(config) {
  const int64_t heads = shape.n_kv_heads, pending = NumBlocks(config.chunk_len);
  const int64_t channels = BlockChannels(config.dtype, shape.head_dim),
                value_stride = BlockChannels(config.dtype, ValueStride(shape.value_head_dim));
  layout.fixed =
      StateFields({{"pending_keys", config.dtype, {heads, pending, channels, kBlockSlots}},
                   {"pending_values", config.dtype, {heads, pending, kBlockSlots, value_stride}},
                   {"best_score", DType::kF32, {heads, config.chunk_len}, {.least = -HUGE_VAL}},
                   {"best_slot", DType::kI32, {heads, config.chunk_len}, {.is_slot = true}}});
  layout.growth = GrowsByChunk(config.chunk_len, config.default_slot_cap, config.min_state_size)
                      .WithShares(config.slot_shares);
  layout.span = config.chunk_len;
  std::vector<StateField> block;
  for (int64_t head = 0; head < heads; ++head) {
    block.push_back({"counts", DType::kU32, {kBlockSlots}});
    block.push_back({"log_counts", DType::kF32, {kBlockSlots}});
    block.push_back({"keys", config.dtype, {channels, kBlockSlots}});
    block.push_back({"values", config.dtype, {kBlockSlots, value_stride}});
  }
  layout.block = StateFields(std::move(block));
  layout.block_heads = shape.n_kv_heads;
}

// With a delta rule a key becomes a query by the factor that queries have: the head's beta, or the
// scale of a LayerNorm's.
void OvqAttention::Load(const MixerSpec& spec) {
  config.layer = spec.layer;
  if (!config.delta_rule) return;
  const auto root = static_cast<float>(std::sqrt(static_cast<double>(shape.head_dim)));
  if (input.norm == HeadNorm::kLayer) {
    const std::vector<float> scales(static_cast<size_t>(shape.n_heads), 1 / root);
    delta_scale = spec.context.Upload(scales.data(), scales.size() * sizeof(float));
  } else {
    delta_scale = spec.weights.Floats({{"self_attn.beta", shape.n_heads}},
                                      input.norm == HeadNorm::kL2 ? root : 1);
  }
}

AttentionBlocks OvqAttention::Blocks(const LayerState& where) const {
  const auto fixed = [&](Field field) { return where.FixedPlace(layout, field); };
  const auto growing = [&](BlockField field) { return where.BlockPlace(layout, field); };
  AttentionBlocks blocks;
  blocks.shape = shape;
  blocks.dtype = config.dtype;
  blocks.wave_span = config.chunk_len;
  blocks.dictionary_keys = {growing(kKeys)};
  blocks.dictionary_values = {growing(kValues)};
  if (!config.counts_for_rates_only) blocks.dictionary_bias = {growing(kLogCounts)};
  blocks.recent_spans = 1;
  blocks.recent_keys = {fixed(kPendingKeys)};
  blocks.recent_values = {fixed(kPendingValues)};
  blocks.probe = true;
  blocks.best_score = fixed(kBestScore);
  blocks.best_slot = fixed(kBestSlot);
  blocks.merge = Merge::kKeysAndValues;
  blocks.normalizes = config.normalize_centroids;
  blocks.delta_scale = delta_scale.as<float>();
  blocks.layer = config.layer;
  blocks.counts = growing(kCounts);
  blocks.log_counts = growing(kLogCounts);
  return blocks;
}

void OvqAttention::Attend(const LayerArgs& args, const AttentionTensors& tokens) const {
  AttentionBlocks blocks = Blocks(args.where);
  blocks.compute_dtype = tokens.out_dtype;
  blocks.live = args.seqs.live[args.where.growth];
  Dispatch<AttendCpu, AttendCuda>(args.context, AttentionArgs{blocks, args.seqs, tokens});
}

std::vector<StateExtent> OvqAttention::UndoExtents(const LayerState& where,
                                                   const TokenRange& tokens) const {
  const bool ends_chunk = tokens.end % config.chunk_len == 0;
  std::vector<StateExtent> extents;
  if (ends_chunk && config.delta_rule) {
    extents.push_back({where.fixed_offset, own_fixed_bytes()});  // pending values are corrected
  } else {
    extents = RecentExtents(Blocks(where), tokens);
  }
  if (!ends_chunk) return extents;
  for (int part = 0; part < layout.growth.parts(); ++part) {
    const int64_t live = layout.growth.LiveAt(tokens.end, tokens.slot_cap, part);
    std::ranges::copy(where.BlockExtents(layout, part, 0, NumBlocks(live)),
                      std::back_inserter(extents));
  }
  return extents;
}

}  // namespace ovq::kernels
