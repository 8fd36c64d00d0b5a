#include "kernels/mixers/softmax/softmax.h"

#include <algorithm>
#include <utility>

#include "kernels/mixers/common/block_attention.h"

namespace ovq::kernels {
namespace {

enum Field { kKeys, kValues };

}  // namespace

void ReadConfig(const FieldReaders& from, FullConfig& config) { ReadAttention(from, config); }

void ReadConfig(const FieldReaders& from, SlidingConfig& config) {
  ReadAttention(from, config);
  from.model.Int("sliding_window", config.window, 1, 1 << 24);
}

// The ring of a window has the query's block and every block that its window reaches into.
SoftmaxAttention::SoftmaxAttention(const StateSpec& spec, const AttentionConfig& config,
                                   int32_t window)
    : Attention(spec, config),
      window_(window),
      ring_(window > 0 ? static_cast<int32_t>(1 + NumBlocks(window - 1)) : 0) {
  const int64_t blocks = int64_t{shape.n_kv_heads} * std::max(ring_, 1);
  std::vector<StateField> fields = {{"keys", dtype, {blocks, key_channels(), kBlockSlots}},
                                    {"values", dtype, {blocks, kBlockSlots, value_channels()}}};
  if (window == 0) {
    state_.growth = GrowsByToken();
    state_.block = StateFields(std::move(fields));
    fields = {};
  }
  SetFixed(std::move(fields));
  state_.span = kBlockSlots;
}

// With a window, waves are one block long: the ring holds the query's own block and those its
// window reaches into, no more. Without a window nothing is overwritten, so all tokens make one
// wave.
AttentionBlocks SoftmaxAttention::Blocks(const LayerState& where) const {
  const auto place = [&](Field field, int64_t channels) {
    const size_t bytes = BlockBytes(dtype, channels);
    if (ring_ == 0) {
      return BlockPlaces{
          {where.blocks_offset + state_.block.offset(field), bytes, where.block_stride}};
    }
    return BlockPlaces{{where.fixed_offset + state_.fixed.offset(field),
                        static_cast<size_t>(ring_) * bytes, bytes},
                       ring_};
  };
  AttentionBlocks blocks = NewBlocks();
  blocks.wave_span = window_ > 0 ? kBlockSlots : 0;
  blocks.window = window_;
  blocks.recent_keys = place(kKeys, shape.head_dim);
  blocks.recent_values = place(kValues, ValueStride(shape.value_head_dim));
  return blocks;
}

}  // namespace ovq::kernels
