#include "kernels/mixers/common/attend.h"

#include <algorithm>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {

int64_t MostBlocks(const AttentionBlocks& blocks, const BatchSequences& seqs) {
  const int64_t window = int64_t{blocks.recent_spans} * blocks.wave_span + blocks.recent_sinks;
  const int64_t tokens = window > 0 ? std::min(seqs.end_bound, window) : seqs.end_bound;
  const int64_t recent =
      blocks.seen() > 0 ? std::min<int64_t>(blocks.seen(), NumBlocks(tokens)) : NumBlocks(tokens);
  return NumBlocks(blocks.live.slots == nullptr ? blocks.fixed_live : blocks.live.bound) + recent;
}

std::vector<StateExtent> RecentExtents(const AttentionBlocks& blocks, const TokenRange& tokens) {
  const int64_t origin = blocks.origin(tokens.begin), begin = tokens.begin - origin,
                end = tokens.end - origin;
  const size_t element = DTypeBytes(blocks.dtype);
  const int value_stride = ValueStride(blocks.shape.value_head_dim);
  const size_t row = static_cast<size_t>(value_stride) * element;
  std::vector<StateExtent> extents;
  for (int head = 0; head < blocks.shape.n_kv_heads; ++head) {
    for (int64_t b = begin / kBlockSlots; b * kBlockSlots < end; ++b) {
      const int64_t index = blocks.ring() > 0 ? b % blocks.ring() : b;
      const int64_t first = std::max(begin, b * kBlockSlots),
                    n = std::min(end, (b + 1) * kBlockSlots) - first;
      const auto slot = static_cast<size_t>(first % kBlockSlots), n_slots = static_cast<size_t>(n);
      const StatePlace &keys = blocks.recent_keys.place, &values = blocks.recent_values.place;
      if (keys.index_stride > 0) {
        extents.push_back(
            {.offset = keys.ByteOffset(head, index) + slot * element,
             .bytes = n_slots * element,
             .pieces = static_cast<size_t>(BlockChannels(blocks.dtype, blocks.shape.head_dim)),
             .stride = kBlockSlots * element});
      }
      extents.push_back({values.ByteOffset(head, index) + slot * row, n_slots * row});
      if (IsScaled(blocks.dtype)) {
        extents.push_back({values.ByteOffset(head, index) + kBlockSlots * row + slot, n_slots});
      }
    }
    for (const StatePlace& best : {blocks.best_score, blocks.best_slot}) {
      if (best.index_stride == 0) continue;
      extents.push_back({best.ByteOffset(head, tokens.begin - blocks.span_begin(tokens.begin)),
                         static_cast<size_t>(end - begin) * best.index_stride});
    }
  }
  return extents;
}

}  // namespace ovq::kernels
