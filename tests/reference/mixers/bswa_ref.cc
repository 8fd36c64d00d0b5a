// The reference of block sliding windows, in double. For one head, with W = chunk_len, n chunks in
// the window and position t:
//   b = max(0, (floor(t / W) + 1 - n) W),  o_t = sum_j softmax_j(q_t . k_j) v_j
// over the positions j <= t with j >= b or j < sink_len.
#include <algorithm>
#include <vector>

#include "kernels/mixers/bswa/bswa.h"
#include "kernels/mixers/common/block_attention.h"
#include "tests/reference/mixers/attention_ref.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels {
namespace {

int64_t WindowBegin(const AttentionBlocks& blocks, int64_t position) {
  const int64_t chunk = position / blocks.wave_span;
  return std::max<int64_t>(0, (chunk + 1 - blocks.recent_spans) * blocks.wave_span);
}

// The slot of position j while the window begins at `begin`: sinks in front, the window after them.
int64_t RecentSlotIndex(const AttentionBlocks& blocks, int64_t j, int64_t begin) {
  return j < blocks.recent_sinks ? j : j - std::max<int64_t>(0, begin - blocks.recent_sinks);
}

// Moves the tokens that stay in the next chunk's window to their new slots.
void Slide(const AttentionArgs& args, const TokenRef& token) {
  const AttentionBlocks& blocks = args.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const int64_t begin = WindowBegin(blocks, token.position),
                next = WindowBegin(blocks, token.position + 1);
  std::vector<float> key(static_cast<size_t>(d)), value(static_cast<size_t>(dv));
  for (int64_t j = std::max<int64_t>(next, blocks.recent_sinks); j <= token.position; ++j) {
    const SlotRef from = RecentSlotRef(args, token, RecentSlotIndex(blocks, j, begin));
    const SlotRef to = RecentSlotRef(args, token, RecentSlotIndex(blocks, j, next));
    LoadKey(from.keys, blocks.dtype, d, from.slot, key.data());
    LoadValue(from.values, blocks.dtype, dv, ValueStride(dv), from.slot, value.data());
    StoreKey(key.data(), d, blocks.dtype, const_cast<void*>(to.keys), to.slot);
    StoreValue(value.data(), dv, ValueStride(dv), blocks.dtype, const_cast<void*>(to.values),
               to.slot);
  }
}

}  // namespace

void BlockSlidingAttentionRef(DeviceContext&, const AttentionArgs& args) {
  const AttentionBlocks& blocks = args.blocks;
  ForEachTokenRef(args, [&](const TokenRef& token) {
    const int64_t p = token.position, begin = WindowBegin(blocks, p);
    StoreTokenRef(args, token, KeyRef(args, token), RecentSlotIndex(blocks, p, begin));
    std::vector<SlotRef> slots;
    for (int64_t j = 0; j < std::min<int64_t>(blocks.recent_sinks, begin); ++j) {
      slots.push_back(RecentSlotRef(args, token, RecentSlotIndex(blocks, j, begin)));
    }
    for (int64_t j = begin; j <= p; ++j) {
      slots.push_back(RecentSlotRef(args, token, RecentSlotIndex(blocks, j, begin)));
    }
    AttendTokenRef(args, token, slots);
    if ((p + 1) % blocks.wave_span == 0) Slide(args, token);
  });
}

const ReferenceOf<BlockSlidingAttentionCpu> kBswa = BlockSlidingAttentionRef;

}  // namespace ovq::kernels
