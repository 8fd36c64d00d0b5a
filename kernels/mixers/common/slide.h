// The slide of a window of several spans (AttentionBlocks::recent_spans) at the end of a span.
// Sinks and window lie in one run of slots: when the oldest span leaves, the others move up to the
// sinks.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attend.h"

namespace ovq::kernels {

// Slots [to + by, to + by + n) become slots [to, to + n). n = 0: the window is not full yet.
struct SlotMove {
  int32_t to, by, n;
};
constexpr SlotMove MoveAfter(const AttentionBlocks& blocks, int64_t chunk) {
  const int64_t end = (chunk + 1) * blocks.wave_span;
  const auto by = static_cast<int32_t>(blocks.origin(end) - blocks.origin(end - 1));
  return {blocks.recent_sinks, by, by > 0 ? (blocks.recent_spans - 1) * blocks.wave_span : 0};
}

// Moves the keys and values of the head. The CUDA version is in cuda/slide.cuh.
void SlideRecentCpu(const AttentionBlocks& blocks, const FullChunk& chunk);

}  // namespace ovq::kernels
