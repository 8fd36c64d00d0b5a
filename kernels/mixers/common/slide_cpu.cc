#include <algorithm>
#include <cstring>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slide.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {

void SlideRecentCpu(const AttentionBlocks& blocks, const FullChunk& chunk) {
  const SlotMove move = MoveAfter(blocks, chunk.chunk);
  const size_t element = DTypeBytes(blocks.dtype);
  const size_t value = static_cast<size_t>(ValueStride(blocks.shape.value_head_dim)) * element;
  const auto slot_of = [&](const StatePlace& place, int32_t i, size_t bytes) {
    return place.At(chunk.session, chunk.kv_head, i / kBlockSlots) +
           static_cast<size_t>(i % kBlockSlots) * bytes;
  };
  // Copies ascending runs that end where a block ends, before or after the move.
  for (int32_t i = move.to, end = move.to + move.n, run = 0; i < end; i += run) {
    const int32_t from = i + move.by;
    run = std::min({end - i, kBlockSlots - i % kBlockSlots, kBlockSlots - from % kBlockSlots});
    std::byte* key = slot_of(blocks.recent_keys.place, i, element);
    const std::byte* old_key = slot_of(blocks.recent_keys.place, from, element);
    for (int64_t c = 0; c < BlockChannels(blocks.dtype, blocks.shape.head_dim); ++c) {
      const size_t channel = static_cast<size_t>(c) * kBlockSlots * element;
      std::memmove(key + channel, old_key + channel, static_cast<size_t>(run) * element);
    }
    std::memmove(slot_of(blocks.recent_values.place, i, value),
                 slot_of(blocks.recent_values.place, from, value),
                 static_cast<size_t>(run) * value);
    if (IsScaled(blocks.dtype)) {
      const size_t exponents = kBlockSlots * value;
      std::memmove(slot_of(blocks.recent_values.place, i, 1) + exponents,
                   slot_of(blocks.recent_values.place, from, 1) + exponents,
                   static_cast<size_t>(run));
    }
  }
}

}  // namespace ovq::kernels
