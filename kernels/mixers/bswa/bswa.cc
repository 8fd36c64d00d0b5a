#include "kernels/mixers/bswa/bswa.h"

#include "kernels/common/dispatch.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slide.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {
namespace {

enum Field { kKeys, kValues };

constexpr int64_t kMaxChunkLen = 1 << 16;

}  // namespace

void ReadConfig(const FieldReaders& from, BlockSlidingConfig& config) {
  ReadAttention(from, config);
  from.section.Int("chunk_len", config.chunk_len, 1, kMaxChunkLen);
  from.section.Int("n_bswa_chunks", config.window_chunks, 1, 256);
  from.section.Int("sink_len", config.sink_len, 0, kMaxChunkLen);
}

BlockSlidingAttention::BlockSlidingAttention(const StateSpec& spec, const Config& config)
    : Attention{.shape = config.shape},
      chunk_len(config.chunk_len),
      window_chunks(config.window_chunks),
      sink_len(config.sink_len),
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

}  // namespace ovq::kernels
