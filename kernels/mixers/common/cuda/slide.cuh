// SlideRecentCpu (slide.h) by one thread block, for one head of a session.
#pragma once

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slide.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels::cuda {

// All threads must call it together. T: type of keys and values. It moves as many slots at a time
// as the distance of the move, so that none is read after it was written.
template <class T>
__device__ void SlideRecent(const AttentionBlocks& blocks, const FullChunk& chunk) {
  const SlotMove move = MoveAfter(blocks, chunk.chunk);
  const int32_t dv = blocks.shape.value_head_dim,
                key_channels = blocks.shape.head_dim + (Slots<T>::kScaled ? 1 : 0);
  const auto threads = static_cast<int32_t>(blockDim.x);
  const auto slot_of = [&](const StatePlace& place, int32_t i, int32_t stride) {
    return place.At<T>(chunk.session, chunk.kv_head, i / kBlockSlots) + i % kBlockSlots * stride;
  };
  for (int32_t begin = move.to; begin < move.to + move.n; begin += move.by) {
    const int32_t left = move.to + move.n - begin, n = left < move.by ? left : move.by;
    for (int32_t item = threadIdx.x; item < n * key_channels; item += threads) {
      const int32_t i = begin + item % n, c = item / n * kBlockSlots;
      slot_of(blocks.recent_keys.place, i, 1)[c] =
          slot_of(blocks.recent_keys.place, i + move.by, 1)[c];
    }
    for (int32_t item = threadIdx.x; item < n * dv; item += threads) {
      const int32_t i = begin + item / dv, c = item % dv;
      slot_of(blocks.recent_values.place, i, ValueStride(dv))[c] =
          slot_of(blocks.recent_values.place, i + move.by, ValueStride(dv))[c];
    }
    for (int32_t item = threadIdx.x; Slots<T>::kScaled && item < n; item += threads) {
      const int32_t i = begin + item, exponents = kBlockSlots * ValueStride(dv);
      slot_of(blocks.recent_values.place, i, 1)[exponents] =
          slot_of(blocks.recent_values.place, i + move.by, 1)[exponents];
    }
    __syncthreads();
  }
}

}  // namespace ovq::kernels::cuda
