#include "kernels/mixers/bswa/bswa.h"

#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/int8_rows.h"
#include "kernels/mixers/common/slide.h"

namespace ovq {
namespace {

enum Field { kKeys, kValues };

constexpr int64_t kMaxChunkLen = 1 << 16;

}  // namespace

BlockSlidingAttention::BlockSlidingAttention(const StateSpec& spec, AttrReader& model,
                                             AttrReader& section)
    : Attention{.shape = ReadAttentionShape(model)},
      chunk_len(static_cast<int32_t>(section.IntOr("chunk_len", 256, 1, kMaxChunkLen))),
      window_chunks(static_cast<int32_t>(section.IntOr("n_bswa_chunks", 2, 1, 256))),
      sink_len(static_cast<int32_t>(section.IntOr("sink_len", 1, 0, kMaxChunkLen))),
      dtype(spec.kv_dtype) {
  const int64_t heads = shape.n_kv_heads,
                blocks = NumBlocks(int64_t{chunk_len} * window_chunks + sink_len);
  const int64_t channels = BlockChannels(dtype, shape.head_dim),
                value_stride = BlockChannels(dtype, ValueStride(shape.value_head_dim));
  layout.fixed = StateFields({{"keys", dtype, {heads, blocks, channels, kBlockSlots}},
                              {"values", dtype, {heads, blocks, kBlockSlots, value_stride}}});
  layout.span = chunk_len;
}

AttentionBlocks BlockSlidingAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks;
  blocks.shape = shape;
  blocks.dtype = dtype;
  blocks.wave_span = chunk_len;
  blocks.recent_spans = window_chunks;
  blocks.recent_sinks = sink_len;
  blocks.recent_keys = {where.FixedPlace(layout, kKeys)};
  blocks.recent_values = {where.FixedPlace(layout, kValues)};
  return blocks;
}

void BlockSlidingAttention::Attend(const LayerArgs& args, const AttentionTensors& tokens) const {
  AttentionBlocks blocks = Blocks(args.where);
  blocks.compute_dtype = tokens.out_dtype;
  Dispatch<BlockSlidingAttentionCpu, BlockSlidingAttentionCuda>(
      args.context, AttentionArgs{blocks, args.seqs, tokens});
}

std::vector<StateExtent> BlockSlidingAttention::UndoExtents(const LayerState& where,
                                                            const TokenRange& tokens) const {
  const AttentionBlocks blocks = Blocks(where);
  const bool slides =
      tokens.end % chunk_len == 0 && MoveAfter(blocks, tokens.end / chunk_len - 1).n > 0;
  if (slides) return {{where.fixed_offset, own_fixed_bytes()}};
  return RecentExtents(blocks, tokens);
}

void BlockSlidingAttentionCpu(DeviceContext& context, const AttentionArgs& args) {
  AttendTilesCpu(context, args, {},
                 [&](const FullChunk& chunk, int) { SlideRecentCpu(args.blocks, chunk); });
}

}  // namespace ovq
