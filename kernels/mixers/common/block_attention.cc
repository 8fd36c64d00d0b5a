#include "kernels/mixers/common/block_attention.h"

#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {

SegmentSums SegmentSumsIn(float* memory, int n_queries, int n_probes, int value_stride) {
  float* out = memory + 2 * n_queries;
  float* best = out + static_cast<size_t>(n_queries) * static_cast<size_t>(value_stride);
  return {.max = memory,
          .sum = memory + n_queries,
          .out = out,
          .best_score = best,
          .best_slot = reinterpret_cast<int32_t*>(best + n_probes)};
}

size_t SegmentScratch(int n_rows, int head_dim, int value_stride) {
  // Scores and the rescale factor, and one block's keys and values in float32.
  return static_cast<size_t>(n_rows) * (kBlockSlots + 1) +
         static_cast<size_t>(kBlockSlots) * static_cast<size_t>(head_dim + value_stride);
}

size_t BlockAttentionScratch(int n_rows, int head_dim, int value_stride) {
  // One segment's scratch, its sums, and those of the segments before it, which partly lie in the
  // tile's outputs.
  return SegmentScratch(n_rows, head_dim, value_stride) + SegmentSumsFloats(n_rows, value_stride) +
         2 * static_cast<size_t>(n_rows);
}

void AttendBlocksCpu(const BlockAttention& tile) {
  float* memory = tile.scratch +
                  SegmentScratch(tile.n_queries + tile.n_probes, tile.head_dim, tile.value_stride);
  const SegmentSums total = {.max = memory,
                             .sum = memory + tile.n_queries,
                             .out = tile.out,
                             .best_score = tile.best_score,
                             .best_slot = tile.best_slot};
  const SegmentSums next =
      SegmentSumsIn(memory + 2 * tile.n_queries, tile.n_queries, tile.n_probes, tile.value_stride);
  for (int s = 0; s < tile.n_segments(); ++s) {
    AttendSegmentCpu(tile, s, tile.blocks.size(), tile.scratch, s == 0 ? total : next);
    if (s > 0) FoldSegmentCpu(tile, next, total);
  }
  FinishSegments(tile, total);
}

void FinishSegments(const BlockAttention& tile, const SegmentSums& total) {
  for (int r = 0; r < tile.n_queries; ++r) {
    const size_t begin = static_cast<size_t>(r) * static_cast<size_t>(tile.value_stride);
    for (size_t i = begin; i < begin + static_cast<size_t>(tile.value_stride); ++i) {
      tile.out[i] = total.out[i] / total.sum[r];
    }
  }
  for (int r = 0; r < tile.n_probes; ++r) {
    tile.best_score[r] = total.best_score[r];
    tile.best_slot[r] = total.best_slot[r];
  }
}

void StoreKey(const float* key, int head_dim, DType dtype, void* keys, int slot, float scale) {
  VisitSlots(dtype, [&]<class T>(Slots<T>) {
    StoreNearest(key, head_dim, scale, KeyRow(static_cast<T*>(keys), head_dim, slot));
  });
}

void StoreValue(const float* value, int value_head_dim, int value_stride, DType dtype, void* values,
                int slot) {
  VisitSlots(dtype, [&]<class T>(Slots<T>) {
    StoreNearest(value, value_head_dim, 1, ValueRow(static_cast<T*>(values), value_stride, slot));
  });
}

void LoadKey(const void* keys, DType dtype, int head_dim, int slot, float* key) {
  VisitSlots(dtype, [&]<class T>(Slots<T>) {
    KeyRow(static_cast<const T*>(keys), head_dim, slot).Load(head_dim, key);
  });
}

void LoadValue(const void* values, DType dtype, int value_head_dim, int value_stride, int slot,
               float* value) {
  VisitSlots(dtype, [&]<class T>(Slots<T>) {
    ValueRow(static_cast<const T*>(values), value_stride, slot).Load(value_head_dim, value);
  });
}

}  // namespace ovq::kernels
