#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq {
namespace {

// The slot of every key, into buffers.assignment.
void Assign(const AttentionBlocks& blocks, const FullChunk& chunk, const ChunkBuffers& buffers) {
  const auto n = static_cast<size_t>(blocks.wave_span);
  const float* score = blocks.best_score.At<float>(chunk.session, chunk.kv_head);
  if (chunk.n_old == 0) {
    for (int64_t b = 0; b < BlocksOf(blocks.wave_span); ++b) {
      ScoreBlockCpu(buffers.keys, blocks.recent_keys.place.At(chunk.session, chunk.kv_head, b),
                    blocks.dtype, blocks.shape.head_dim, buffers.score + b * kBlockSlots);
    }
    score = buffers.score;
  }
  AssignChunk({score, n}, {blocks.best_slot.At<int32_t>(chunk.session, chunk.kv_head), n},
              chunk.n_old, chunk.n_next, {buffers.order, n}, {buffers.assignment, n});
}

// One slot's row += sum over its keys (key - row) / count, the keys in ascending order: the order
// of a sum is fixed. A new slot's row is zero. rows [chunk_len][n]; element i of the slot at
// data[i * stride].
template <class T>
void MergeRow(const float* rows, int n, std::span<const int32_t> members, float count, T* data,
              size_t stride, const RoundingKey& key, const ChunkBuffers& buffers) {
  for (int i = 0; i < n; ++i) {
    buffers.old_row[i] = ToFloat(data[static_cast<size_t>(i) * stride]);
    buffers.sum[i] = 0;
  }
  for (int32_t member : members) {
    const float* row = rows + static_cast<size_t>(member) * n;
    for (int i = 0; i < n; ++i) buffers.sum[i] += row[i] - buffers.old_row[i];
  }
  for (int i = 0; i < n; ++i) buffers.sum[i] = buffers.old_row[i] + buffers.sum[i] / count;
  RoundRow(buffers.sum, n, key, data, stride);
}

template <class T>
void MergeSlot(const AttentionBlocks& blocks, const FullChunk& chunk,
               std::span<const int32_t> members, int32_t centroid, const ChunkBuffers& buffers) {
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const int64_t block = centroid / kBlockSlots;
  const int slot = centroid % kBlockSlots;
  uint32_t& count = blocks.counts.At<uint32_t>(chunk.session, chunk.kv_head, block)[slot];
  count = static_cast<uint32_t>(
      std::min<uint64_t>(uint64_t{count} + members.size(), std::numeric_limits<uint32_t>::max()));
  const auto divisor = static_cast<float>(count);
  blocks.log_counts.At<float>(chunk.session, chunk.kv_head, block)[slot] = std::log(divisor);
  RoundingKey key = {.layer = static_cast<uint32_t>(blocks.layer),
                     .kv_head = static_cast<uint32_t>(chunk.kv_head),
                     .row = static_cast<uint32_t>(centroid),
                     .is_value = false,
                     .chunk = chunk.chunk};
  if (blocks.merge == Merge::kKeysAndValues) {
    T* keys = blocks.dictionary_keys.place.At<T>(chunk.session, chunk.kv_head, block);
    MergeRow(buffers.keys, d, members, divisor, keys + slot, kBlockSlots, key, buffers);
  }
  key.is_value = true;
  T* values = blocks.dictionary_values.place.At<T>(chunk.session, chunk.kv_head, block);
  MergeRow(buffers.values, dv, members, divisor, values + slot * ValueStride(dv), 1, key, buffers);
}

}  // namespace

void AssignChunk(std::span<const float> score, std::span<const int32_t> best_slot, int64_t n_old,
                 int64_t n_next, std::span<int32_t> order, std::span<int32_t> assignment) {
  const bool first = n_old == 0;
  if (first) {
    std::ranges::fill(assignment, 0);
  } else {
    std::ranges::copy(best_slot, assignment.begin());
  }
  const int64_t first_new = first ? 1 : n_old;
  if (n_next <= first_new) return;
  // NaN, which only broken weights give, comes last.
  const auto rank = [&](int32_t i) {
    return std::isnan(score[i]) ? std::numeric_limits<float>::infinity() : score[i];
  };
  const std::span<int32_t> keys = order.subspan(first ? 1 : 0);
  std::iota(keys.begin(), keys.end(), first ? 1 : 0);
  std::sort(keys.begin(), keys.end(), [&](int32_t a, int32_t b) {
    const float score_a = rank(a), score_b = rank(b);
    return score_a != score_b ? score_a < score_b : a < b;
  });
  for (int64_t j = first_new; j < n_next; ++j) {
    assignment[keys[j - first_new]] = static_cast<int32_t>(j);
  }
}

ChunkBuffers MakeChunkBuffers(ScratchScope& scope, const AttentionBlocks& blocks) {
  const auto n = static_cast<size_t>(blocks.wave_span);
  const auto d = static_cast<size_t>(blocks.shape.head_dim);
  const auto dv = static_cast<size_t>(blocks.shape.value_head_dim);
  const auto slots = static_cast<size_t>(BlocksOf(blocks.wave_span)) * kBlockSlots;
  return {.keys = scope.Allocate<float>(n * d),
          .values = scope.Allocate<float>(n * dv),
          .score = scope.Allocate<float>(slots),
          .order = scope.Allocate<int32_t>(n),
          .assignment = scope.Allocate<int32_t>(n),
          .old_row = scope.Allocate<float>(std::max(d, dv)),
          .sum = scope.Allocate<float>(std::max(d, dv))};
}

void UpdateChunkCpu(const AttentionBlocks& blocks, const FullChunk& chunk,
                    const ChunkBuffers& buffers) {
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  for (int i = 0; i < blocks.wave_span; ++i) {
    const int64_t block = i / kBlockSlots;
    const int slot = i % kBlockSlots;
    if (blocks.merge == Merge::kKeysAndValues) {
      LoadKey(blocks.recent_keys.place.At(chunk.session, chunk.kv_head, block), blocks.dtype, d,
              slot, buffers.keys + static_cast<size_t>(i) * d);
    }
    LoadValue(blocks.recent_values.place.At(chunk.session, chunk.kv_head, block), blocks.dtype, dv,
              ValueStride(dv), slot, buffers.values + static_cast<size_t>(i) * dv);
  }
  Assign(blocks, chunk, buffers);
  // Keys grouped by slot, in ascending order within a group.
  const std::span<const int32_t> slot_of(buffers.assignment, static_cast<size_t>(blocks.wave_span));
  const std::span<int32_t> order(buffers.order, slot_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return slot_of[a] != slot_of[b] ? slot_of[a] < slot_of[b] : a < b;
  });
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const int32_t slot = slot_of[order[begin]];
    for (end = begin + 1; end < order.size() && slot_of[order[end]] == slot;) ++end;
    const std::span<const int32_t> members = order.subspan(begin, end - begin);
    if (blocks.dtype == DType::kBF16) {
      MergeSlot<BF16>(blocks, chunk, members, slot, buffers);
    } else {
      MergeSlot<float>(blocks, chunk, members, slot, buffers);
    }
  }
}

}  // namespace ovq
