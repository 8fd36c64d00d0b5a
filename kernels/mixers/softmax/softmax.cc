#include "kernels/mixers/softmax/softmax.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace {

enum Field { kKeys, kValues };

}  // namespace

void ReadConfig(const FieldReaders& from, FullConfig& config) { ReadAttention(from, config); }

void ReadConfig(const FieldReaders& from, SlidingConfig& config) {
  ReadAttention(from, config);
  from.model.Int("sliding_window", config.window, 1, 1 << 24);
}

SoftmaxAttention::SoftmaxAttention(const StateSpec& spec, const AttentionConfig& config,
                                   int32_t window)
    : Attention{.shape = config.shape}, window(window), dtype(spec.kv_dtype) {
  if (window > 0) {
    // Enough for the query's 64-aligned block and every block that its window reaches into.
    ring = static_cast<int32_t>(1 + NumBlocks(window - 1));
  }
  const int64_t blocks = int64_t{shape.n_kv_heads} * std::max(ring, 1);
  const int64_t channels = BlockChannels(dtype, shape.head_dim),
                value_stride = BlockChannels(dtype, ValueStride(shape.value_head_dim));
  StateFields fields({{"keys", dtype, {blocks, channels, kBlockSlots}},
                      {"values", dtype, {blocks, kBlockSlots, value_stride}}});
  if (window > 0) {
    layout.fixed = std::move(fields);
  } else {
    layout.growth = GrowsByToken();
    layout.block = std::move(fields);
  }
  layout.span = kBlockSlots;
}

// With a window, waves are one block long: the ring holds the query's own block and those its
// window reaches into, no more. Without a window nothing is overwritten, so all tokens make one
// wave.
AttentionBlocks SoftmaxAttention::Blocks(const LayerState& where) const {
  const auto place = [&](Field field, int64_t channels) {
    const size_t bytes = BlockBytes(dtype, channels);
    if (ring == 0) {
      return BlockPlaces{
          {where.blocks_offset + layout.block.offset(field), bytes, where.block_stride}};
    }
    return BlockPlaces{
        {where.fixed_offset + layout.fixed.offset(field), static_cast<size_t>(ring) * bytes, bytes},
        ring};
  };
  AttentionBlocks blocks;
  blocks.shape = shape;
  blocks.dtype = dtype;
  blocks.wave_span = window > 0 ? kBlockSlots : 0;
  blocks.window = window;
  blocks.recent_keys = place(kKeys, shape.head_dim);
  blocks.recent_values = place(kValues, ValueStride(shape.value_head_dim));
  return blocks;
}

void SoftmaxAttention::Attend(const LayerArgs& args, const AttentionTensors& tokens) const {
  AttentionBlocks blocks = Blocks(args.where);
  blocks.compute_dtype = tokens.out_dtype;
  Dispatch<AttendCpu, AttendCuda>(args.context, AttentionArgs{blocks, args.seqs, tokens});
}

std::vector<StateExtent> SoftmaxAttention::UndoExtents(const LayerState& where,
                                                       const TokenRange& tokens) const {
  return RecentExtents(Blocks(where), tokens);
}

}  // namespace ovq::kernels
