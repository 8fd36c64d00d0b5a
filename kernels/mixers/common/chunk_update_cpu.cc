#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/slot_variance.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq::kernels {
namespace {

// Writes the slot of every key to buffers.assignment.
void Assign(const AttentionBlocks& blocks, const FullChunk& chunk, const ChunkBuffers& buffers) {
  const auto n = static_cast<size_t>(blocks.wave_span);
  const float* score = blocks.best_score.At<float>(chunk.session, chunk.kv_head);
  if (chunk.n_old == 0) {
    for (int64_t b = 0; b < NumBlocks(blocks.wave_span); ++b) {
      ScoreBlockCpu(buffers.keys, blocks.recent_keys.place.At(chunk.session, chunk.kv_head, b),
                    blocks.dtype, blocks.shape.head_dim, buffers.score + b * kBlockSlots);
    }
    score = buffers.score;
  }
  AssignChunk({score, n}, {blocks.best_slot.At<int32_t>(chunk.session, chunk.kv_head), n},
              chunk.n_old, chunk.n_next, {buffers.order, n}, {buffers.assignment, n});
}

// The merge of a chunk's keys or values into their slots.
struct RowMerge {
  const float* rows;  // [chunk_len][n]
  int n;
  float count;
  bool from_mean;  // adds the rows' distances from the mean, not the rows
  bool normalizes;
  RoundingKey key;
};

float Norm(const float* row, int n) {
  float squares = 0;
  for (int i = 0; i < n; ++i) squares += row[i] * row[i];
  return std::max(std::sqrt(squares), kSmallestNorm);
}

// One slot's mean += sum_i (k_i - mean) / count over its keys i in ascending order, so that the
// order of the sum is fixed. A new slot's mean starts at zero.
template <class T>
void MergeRow(const RowMerge& merge, std::span<const int32_t> members, const SlotRow<T>& mean,
              const ChunkBuffers& buffers) {
  const int n = merge.n;
  for (int i = 0; i < n; ++i) {
    buffers.old_row[i] = merge.from_mean ? mean[i] : 0;
    buffers.sum[i] = 0;
  }
  for (int32_t member : members) {
    const float* row = merge.rows + static_cast<size_t>(member) * n;
    for (int i = 0; i < n; ++i) buffers.sum[i] += row[i] - buffers.old_row[i];
  }
  for (int i = 0; i < n; ++i) {
    buffers.sum[i] = mean[i] + buffers.sum[i] / merge.count;
  }
  if (merge.normalizes) {
    const float norm = Norm(buffers.sum, n);
    for (int i = 0; i < n; ++i) buffers.sum[i] /= norm;
  }
  RoundRow(buffers.sum, n, merge.key, mean);
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
  float& log_count = blocks.log_counts.At<float>(chunk.session, chunk.kv_head, block)[slot];
  log_count = std::log(divisor);
  const bool has_delta = blocks.delta_scale != nullptr;
  RowMerge merge = {.rows = buffers.keys,
                    .n = d,
                    .count = divisor,
                    .from_mean = true,
                    .normalizes = blocks.normalizes,
                    .key = {.layer = static_cast<uint32_t>(blocks.layer),
                            .kv_head = static_cast<uint32_t>(chunk.kv_head),
                            .row = static_cast<uint32_t>(centroid),
                            .is_value = false,
                            .chunk = chunk.chunk}};
  if (blocks.merge == Merge::kKeysAndValues) {
    T* keys = blocks.dictionary_keys.place.At<T>(chunk.session, chunk.kv_head, block);
    MergeRow(merge, members, KeyRow(keys, d, slot), buffers);
    log_count += VarianceBias(blocks, chunk.kv_head, count, KeyRow(keys, d, slot));
  }
  merge.rows = buffers.values;
  merge.n = dv;
  merge.from_mean = !has_delta;
  merge.normalizes = blocks.normalizes && !has_delta;
  merge.key.is_value = true;
  T* values = blocks.dictionary_values.place.At<T>(chunk.session, chunk.kv_head, block);
  MergeRow(merge, members, ValueRow(values, ValueStride(dv), slot), buffers);
}

// Delta rule: buffers.values -= the attention output of their keys, times delta_scale, over the old
// slots.
void SubtractPredictions(const AttentionBlocks& blocks, const FullChunk& chunk,
                         const ChunkBuffers& buffers) {
  if (blocks.delta_scale == nullptr || chunk.n_old == 0) return;
  const int n = blocks.wave_span, d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim,
            value_stride = ValueStride(dv);
  const PredictionBuffers& read = buffers.read;
  const auto n_blocks = static_cast<int32_t>(NumBlocks(chunk.n_old));
  for (int32_t b = 0; b < n_blocks; ++b) {
    const auto at = [&](const BlockPlaces& places) {
      return places.place.At(chunk.session, chunk.kv_head, b);
    };
    read.blocks[b] = {.keys = at(blocks.dictionary_keys),
                      .values = at(blocks.dictionary_values),
                      .bias = blocks.has_bias()
                                  ? reinterpret_cast<const float*>(at(blocks.dictionary_bias))
                                  : nullptr,
                      .live = std::min(kBlockSlots, chunk.n_old - b * kBlockSlots),
                      .begin = 0};
  }
  const float scale = blocks.delta_scale[chunk.kv_head];
  for (int i = 0; i < n * d; ++i) read.queries[i] = buffers.keys[i] * scale;
  for (int i = 0; i < n; ++i) read.rows[i] = read.queries + static_cast<size_t>(i) * d;
  std::fill_n(read.position, n, 0);
  AttendBlocksCpu({.dtype = blocks.dtype,
                   .head_dim = d,
                   .value_stride = value_stride,
                   .window = 0,
                   .blocks = {read.blocks, static_cast<size_t>(n_blocks)},
                   .rows = read.rows,
                   .n_queries = n,
                   .query_position = read.position,
                   .out = read.out,
                   .n_probes = 0,
                   .best_score = nullptr,
                   .best_slot = nullptr,
                   .scratch = read.scratch});
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < dv; ++c) {
      buffers.values[static_cast<size_t>(i) * dv + c] -=
          read.out[static_cast<size_t>(i) * value_stride + c];
    }
  }
}

PredictionBuffers MakePredictionBuffers(ScratchScope& scope, const AttentionBlocks& blocks) {
  const int d = blocks.shape.head_dim, stride = ValueStride(blocks.shape.value_head_dim);
  const auto n = static_cast<size_t>(blocks.wave_span);
  return {.blocks = scope.Allocate<KvBlock>(static_cast<size_t>(NumBlocks(blocks.live.bound))),
          .queries = scope.Allocate<float>(n * static_cast<size_t>(d)),
          .rows = scope.Allocate<const float*>(n),
          .position = scope.Allocate<int32_t>(n),
          .out = scope.Allocate<float>(n * static_cast<size_t>(stride)),
          .scratch = scope.Allocate<float>(BlockAttentionScratch(blocks.wave_span, d, stride))};
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
  // NaN, which only broken weights cause, comes last.
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
  const auto slots = static_cast<size_t>(NumBlocks(blocks.wave_span)) * kBlockSlots;
  ChunkBuffers buffers = {.keys = scope.Allocate<float>(n * d),
                          .values = scope.Allocate<float>(n * dv),
                          .score = scope.Allocate<float>(slots),
                          .order = scope.Allocate<int32_t>(n),
                          .assignment = scope.Allocate<int32_t>(n),
                          .old_row = scope.Allocate<float>(std::max(d, dv)),
                          .sum = scope.Allocate<float>(std::max(d, dv))};
  if (blocks.delta_scale != nullptr) buffers.read = MakePredictionBuffers(scope, blocks);
  return buffers;
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
  SubtractPredictions(blocks, chunk, buffers);
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
    VisitSlots(blocks.dtype,
               [&]<class T>(Slots<T>) { MergeSlot<T>(blocks, chunk, members, slot, buffers); });
  }
}

}  // namespace ovq::kernels
