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
    : Attention(spec, config), config_(config) {
  const int64_t heads = shape.n_kv_heads,
                blocks =
                    NumBlocks(int64_t{config.chunk_len} * config.window_chunks + config.sink_len);
  SetFixed({{"keys", dtype, {heads, blocks, key_channels(), kBlockSlots}},
            {"values", dtype, {heads, blocks, kBlockSlots, value_channels()}}});
  state_.span = config.chunk_len;
}

AttentionBlocks BlockSlidingAttention::Blocks(const LayerState& where) const {
  AttentionBlocks blocks = NewBlocks();
  blocks.wave_span = config_.chunk_len;
  blocks.recent_spans = config_.window_chunks;
  blocks.recent_sinks = config_.sink_len;
  blocks.recent_keys = {where.FixedPlace(state_, kKeys)};
  blocks.recent_values = {where.FixedPlace(state_, kValues)};
  return blocks;
}

void BlockSlidingAttention::Attend(const LayerArgs& layer_args, const AttentionArgs& args) const {
  Dispatch<BlockSlidingAttentionCpu, BlockSlidingAttentionCuda>(layer_args.context, args);
}

std::vector<StateExtent> BlockSlidingAttention::OwnExtents(const LayerState& where,
                                                           const TokenRange& tokens) const {
  const AttentionBlocks blocks = Blocks(where);
  const bool slides = tokens.end % config_.chunk_len == 0 &&
                      MoveAfter(blocks, tokens.end / config_.chunk_len - 1).n > 0;
  if (slides) return {{where.fixed_offset, own_fixed_bytes}};
  return RecentExtents(blocks, tokens);
}

void BlockSlidingAttentionCpu(DeviceContext& context, const AttentionArgs& args) {
  AttendTilesCpu(context, args, {},
                 [&](const FullChunk& chunk, int) { SlideRecentCpu(args.blocks, chunk); });
}

}  // namespace ovq::kernels
