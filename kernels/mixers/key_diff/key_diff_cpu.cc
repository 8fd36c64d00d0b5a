// KeyDiff on the CPU. A head's chunk attends as in OVQ. At its end, over the n keys k_i of the
// slots and of the chunk's tokens:
//   a = sum_i k_i / |k_i|,  s_i = k_i . a / |k_i|
// The spared tokens and those of the lowest s_i, of equal ones the older, n_next together, become
// the slots 0 .. n_next - 1 in their order. No scale of int8 changes a cosine, so elements stand
// for keys.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/key_diff/key_diff.h"

namespace ovq::kernels {
namespace {

// Scratch memory of one thread; a row is one of KeyDiffRows.
struct EvictionBuffers {
  float* inverse_norm;  // [rows] 1 / |k_i|
  float* score;         // [rows] s_i
  int32_t* order;       // [rows]
  float* sums;          // [head_dim][64] a by lanes of blocks, then [head_dim] a
};

// Fills the scores.
template <class T>
void Score(const KeyDiffRows& rows, const EvictionBuffers& buffers) {
  const int d = rows.blocks.shape.head_dim;
  std::fill_n(buffers.sums, d * kBlockSlots, 0.0f);
  for (int32_t row = 0; row < rows.size(); row += rows.Run(row)) {
    const T* keys = rows.Keys<const T>(row);
    const int32_t n = rows.Run(row);
    float of_row[kBlockSlots] = {};
    for (int c = 0; c < d; ++c) {
      for (int32_t s = 0; s < n; ++s) {
        const float x = ToFloat(keys[c * kBlockSlots + s]);
        of_row[s] += x * x;
      }
    }
    for (int32_t s = 0; s < n; ++s) of_row[s] = 1 / std::max(std::sqrt(of_row[s]), kSmallestNorm);
    for (int c = 0; c < d; ++c) {
      float* const sum = buffers.sums + c * kBlockSlots;
      for (int32_t s = 0; s < n; ++s) sum[s] += ToFloat(keys[c * kBlockSlots + s]) * of_row[s];
    }
    std::copy_n(of_row, n, buffers.inverse_norm + row);
  }
  for (int c = 0; c < d; ++c) {
    const float* const lanes = buffers.sums + c * kBlockSlots;
    buffers.sums[c] = std::accumulate(lanes, lanes + kBlockSlots, 0.0f);
  }
  for (int32_t row = 0; row < rows.size(); row += rows.Run(row)) {
    const T* keys = rows.Keys<const T>(row);
    const int32_t n = rows.Run(row);
    float of_row[kBlockSlots] = {};
    for (int c = 0; c < d; ++c) {
      const float sum = buffers.sums[c];
      for (int32_t s = 0; s < n; ++s) of_row[s] += sum * ToFloat(keys[c * kBlockSlots + s]);
    }
    for (int32_t s = 0; s < n; ++s) {
      buffers.score[row + s] = of_row[s] * buffers.inverse_norm[row + s];
    }
  }
}

// Moves n rows from `row` on, which lie in one block, to the slots from `slot` on, likewise.
void Move(const KeyDiffRows& rows, int32_t row, int32_t slot, int32_t n) {
  const AttentionBlocks& blocks = rows.blocks;
  const int stride = ValueStride(blocks.shape.value_head_dim), from = rows.Index(row) % kBlockSlots,
            to = slot % kBlockSlots;
  const size_t element = DTypeBytes(blocks.dtype);
  const auto move = [&](std::byte* to_block, const std::byte* from_block, int to_element,
                        int from_element, int elements) {
    std::memmove(to_block + static_cast<size_t>(to_element) * element,
                 from_block + static_cast<size_t>(from_element) * element,
                 static_cast<size_t>(elements) * element);
  };
  auto *to_keys = rows.SlotKeys<std::byte>(slot), *to_values = rows.SlotValues<std::byte>(slot);
  const auto *keys = rows.Keys<std::byte>(row), *values = rows.Values<std::byte>(row);
  // Exponents lie behind the channels of keys, as one more, and behind the values.
  const int64_t channels = BlockChannels(blocks.dtype, blocks.shape.head_dim);
  for (int c = 0; c < channels; ++c) {
    move(to_keys, keys, c * kBlockSlots + to, c * kBlockSlots + from, n);
  }
  move(to_values, values, to * stride, from * stride, n * stride);
  if (!IsScaled(blocks.dtype)) return;
  move(to_values, values, kBlockSlots * stride + to, kBlockSlots * stride + from, n);
}

void EndChunk(const KeyDiffRows& rows, const EvictionBuffers& buffers) {
  const int32_t n = rows.size(), n_kept = rows.chunk.n_next;
  std::iota(buffers.order, buffers.order + n, 0);
  if (n > n_kept) {
    VisitSlots(rows.blocks.dtype, [&]<class T>(Slots<T>) { Score<T>(rows, buffers); });
    // NaN, which only broken weights cause, is evicted first.
    const auto rank = [&](int32_t row) {
      if (rows.IsSpared(row)) return -HUGE_VALF;
      return std::isnan(buffers.score[row]) ? HUGE_VALF : buffers.score[row];
    };
    std::nth_element(
        buffers.order, buffers.order + n_kept, buffers.order + n,
        [&](int32_t a, int32_t b) { return rank(a) != rank(b) ? rank(a) < rank(b) : a < b; });
    std::sort(buffers.order + n_kept, buffers.order + n);
  }
  // Rows move down or stay, so a run never overwrites one that has yet to move.
  const int32_t* evicted = buffers.order + n_kept;
  for (int32_t row = 0, slot = 0; row < n;) {
    const int32_t next = evicted == buffers.order + n ? n : *evicted;
    if (row == next) {
      ++row;
      ++evicted;
      continue;
    }
    const int32_t run = std::min({next - row, rows.Run(row), kBlockSlots - slot % kBlockSlots});
    if (!rows.IsSlot(row) || row != slot) Move(rows, row, slot, run);
    row += run;
    slot += run;
  }
}

}  // namespace

void KeyDiffCpu(DeviceContext& context, const KeyDiffArgs& args) {
  ScratchScope scope(context);
  const auto n = static_cast<size_t>(args.blocks.live.bound + args.blocks.wave_span),
             d = static_cast<size_t>(args.blocks.shape.head_dim);
  std::vector<EvictionBuffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) {
    buffers.push_back({scope.Allocate<float>(n), scope.Allocate<float>(n),
                       scope.Allocate<int32_t>(n), scope.Allocate<float>(d * kBlockSlots)});
  }
  AttendTilesCpu(context, args, {}, [&](const FullChunk& chunk, int thread) {
    EndChunk({args.blocks, chunk, args.rule}, buffers[static_cast<size_t>(thread)]);
  });
}

}  // namespace ovq::kernels
