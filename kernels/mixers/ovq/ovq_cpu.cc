// OVQ attention on the CPU, OVQ paper eq. 15 and 17-19. Of one head: q [n_rows, head_dim] (times
// beta), k [n_rows, head_dim], v [n_rows, value_head_dim]; Dk [n, head_dim], Dv [n,
// value_head_dim], counts c [n]. With the chunk's keys K and values V up to t:
//   o_t = softmax([q_t Dk^T + ln c | q_t K^T]) [Dv | V]
// and at the chunk's end, over the keys assigned to centroid j (Dv alike):
//   Dk_j += sum (k_i - Dk_j) / c_j
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/parallel.h"
#include "kernels/mixers/common/attention_tile.h"
#include "kernels/mixers/common/stochastic_rounding.h"
#include "kernels/mixers/ovq/assign.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq {
namespace {

// One thread's buffers for the chunk update.
struct UpdateBuffers {
  float* keys;          // [chunk_len][head_dim]
  float* values;        // [chunk_len][value_head_dim]
  float* score;         // [pending_blocks][64]
  int32_t* order;       // [chunk_len]
  int32_t* assignment;  // [chunk_len]
  float* old_row;       // [max(head_dim, value_head_dim)]
  float* sum;           // the same
};

UpdateBuffers MakeUpdateBuffers(ScratchScope& scope, const OvqConfig& config) {
  const auto chunk = static_cast<size_t>(config.chunk_len);
  const auto d = static_cast<size_t>(config.shape.head_dim);
  const auto dv = static_cast<size_t>(config.shape.value_head_dim);
  return {
      .keys = scope.Allocate<float>(chunk * d),
      .values = scope.Allocate<float>(chunk * dv),
      .score = scope.Allocate<float>(static_cast<size_t>(BlocksOf(config.chunk_len)) * kBlockSlots),
      .order = scope.Allocate<int32_t>(chunk),
      .assignment = scope.Allocate<int32_t>(chunk),
      .old_row = scope.Allocate<float>(std::max(d, dv)),
      .sum = scope.Allocate<float>(std::max(d, dv))};
}

// The update of one head at the end of chunk `chunk`: the dictionary grows from n_old to n_next.
struct ChunkUpdate {
  const OvqConfig& config;
  const OvqHead& head;
  int kv_head;
  int64_t chunk;
  int64_t n_old;
  int64_t n_next;
};

void Assign(const ChunkUpdate& update, const UpdateBuffers& buffers) {
  const auto n = static_cast<size_t>(update.config.chunk_len);
  const std::span<int32_t> order(buffers.order, n), assignment(buffers.assignment, n);
  if (update.n_old > 0) {
    AssignChunk({update.head.best_score, n}, {update.head.best_slot, n}, update.n_old,
                update.n_next - update.n_old, order, assignment);
    return;
  }
  for (int64_t b = 0; b < BlocksOf(update.config.chunk_len); ++b) {
    ScoreBlockCpu(buffers.keys, update.head.pending_keys_block(b), update.config.dtype,
                  update.config.shape.head_dim, buffers.score + b * kBlockSlots);
  }
  AssignFirstChunk({buffers.score, n}, update.n_next, order, assignment);
}

// One centroid's row += sum over its keys (key - row) / count, the keys in ascending order. A new
// centroid's row is zero. rows [chunk_len][n]; element i of the centroid at data[i * stride].
template <class T>
void MergeRow(const float* rows, int n, std::span<const int32_t> members, float count, T* data,
              size_t stride, const RoundingKey& key, const UpdateBuffers& buffers) {
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
void MergeCentroid(const ChunkUpdate& update, std::span<const int32_t> members, int32_t centroid,
                   const UpdateBuffers& buffers) {
  const AttentionShape& shape = update.config.shape;
  const int64_t block = centroid / kBlockSlots;
  const int slot = centroid % kBlockSlots;
  uint32_t& count = update.head.counts(block)[slot];
  const uint64_t new_count = uint64_t{count} + members.size();
  count =
      static_cast<uint32_t>(std::min<uint64_t>(new_count, std::numeric_limits<uint32_t>::max()));
  const auto divisor = static_cast<float>(count);
  update.head.log_counts(block)[slot] = std::log(divisor);
  RoundingKey key = {.layer = static_cast<uint32_t>(update.config.layer),
                     .kv_head = static_cast<uint32_t>(update.kv_head),
                     .row = static_cast<uint32_t>(centroid),
                     .is_value = false,
                     .chunk = update.chunk};
  MergeRow(buffers.keys, shape.head_dim, members, divisor,
           reinterpret_cast<T*>(update.head.keys(block)) + slot, kBlockSlots, key, buffers);
  key.is_value = true;
  MergeRow(buffers.values, shape.value_head_dim, members, divisor,
           reinterpret_cast<T*>(update.head.values(block)) +
               static_cast<size_t>(slot) * ValueStride(shape.value_head_dim),
           1, key, buffers);
}

void UpdateDictionary(const ChunkUpdate& update, const UpdateBuffers& buffers) {
  const OvqConfig& config = update.config;
  const int d = config.shape.head_dim, dv = config.shape.value_head_dim;
  const int chunk_len = config.chunk_len;
  for (int i = 0; i < chunk_len; ++i) {
    const int64_t block = i / kBlockSlots;
    LoadKey(update.head.pending_keys_block(block), config.dtype, d, i % kBlockSlots,
            buffers.keys + static_cast<size_t>(i) * d);
    LoadValue(update.head.pending_values_block(block), config.dtype, dv, ValueStride(dv),
              i % kBlockSlots, buffers.values + static_cast<size_t>(i) * dv);
  }
  Assign(update, buffers);
  // Keys grouped by centroid, in ascending order within a group.
  const int32_t* assignment = buffers.assignment;
  int32_t* order = buffers.order;
  for (int32_t i = 0; i < chunk_len; ++i) order[i] = i;
  std::sort(order, order + chunk_len, [&](int32_t a, int32_t b) {
    return assignment[a] != assignment[b] ? assignment[a] < assignment[b] : a < b;
  });
  for (int begin = 0, end = 0; begin < chunk_len; begin = end) {
    const int32_t centroid = assignment[order[begin]];
    for (end = begin + 1; end < chunk_len && assignment[order[end]] == centroid;) ++end;
    const std::span<const int32_t> members(order + begin, static_cast<size_t>(end - begin));
    if (config.dtype == DType::kBF16) {
      MergeCentroid<BF16>(update, members, centroid, buffers);
    } else {
      MergeCentroid<float>(update, members, centroid, buffers);
    }
  }
}

void AddBlocks(const OvqHead& head, int64_t n_live, int64_t pending_block, AttentionTile& tile) {
  tile.ClearBlocks();
  for (int64_t b = 0; b < BlocksOf(n_live); ++b) {
    tile.AddBlock(
        {.keys = head.keys(b),
         .values = head.values(b),
         .bias = head.log_counts(b),
         .live = static_cast<int32_t>(std::min<int64_t>(kBlockSlots, n_live - b * kBlockSlots)),
         .begin = 0});
  }
  for (int64_t b = 0; b <= pending_block; ++b) {
    tile.AddBlock({.keys = head.pending_keys_block(b),
                   .values = head.pending_values_block(b),
                   .bias = nullptr,
                   .live = -1,
                   .begin = static_cast<int32_t>(b * kBlockSlots)});
  }
}

// All of one head's rows of this step, in order. Tiles end where a pending block or the chunk ends,
// so that all rows of one meet the same blocks as they would alone.
void AttendHead(const OvqArgs& args, int s, int kv_head, AttentionTile& tile,
                const UpdateBuffers& buffers) {
  const OvqConfig& config = args.config;
  const int chunk_len = config.chunk_len;
  const LiveSlots& live = args.live();
  const OvqHead head = args.state.Head(args.seqs.state[s], args.where, kv_head);
  int64_t row = args.seqs.row_begin[s];
  const int64_t end_row = args.seqs.row_begin[s + 1];
  int64_t position = args.seqs.start_pos[s];
  while (row < end_row) {
    const int64_t chunk = position / chunk_len;
    const int offset = static_cast<int>(position % chunk_len);
    const int64_t period = chunk - args.seqs.start_pos[s] / chunk_len;
    const int64_t n_live = live.At(s, period);
    const int slot = offset % kBlockSlots;
    const int n_tokens = static_cast<int>(std::min<int64_t>(
        {int64_t{kBlockSlots - slot}, int64_t{chunk_len - offset}, end_row - row}));
    const int64_t pending_block = offset / kBlockSlots;
    StoreTokens(config.shape, args.rows, kv_head, row, n_tokens, config.dtype,
                head.pending_keys_block(pending_block), head.pending_values_block(pending_block),
                slot);
    AddBlocks(head, n_live, pending_block, tile);
    tile.Attend(args.rows, kv_head, row, n_tokens, offset, /*window=*/0, config.dtype,
                /*probe=*/n_live > 0, head.best_score + offset, head.best_slot + offset);
    if (offset + n_tokens == chunk_len) {
      UpdateDictionary({config, head, kv_head, chunk, n_live, live.At(s, period + 1)}, buffers);
    }
    row += n_tokens;
    position += n_tokens;
  }
}

}  // namespace

void OvqAttentionCpu(DeviceContext& context, const OvqArgs& args) {
  ScratchScope scope(context);
  const int max_tokens = std::min(kTileTokens, args.seqs.longest_run());
  const int64_t most_blocks = BlocksOf(args.live().bound) + BlocksOf(args.config.chunk_len);
  std::vector<AttentionTile> tiles =
      MakeTiles(scope, context, args.config.shape, max_tokens, most_blocks);
  std::vector<UpdateBuffers> buffers;
  buffers.reserve(static_cast<size_t>(context.n_threads()));
  for (int i = 0; i < context.n_threads(); ++i) {
    buffers.push_back(MakeUpdateBuffers(scope, args.config));
  }
  const int heads = args.config.shape.n_kv_heads;
  ParallelFor(context, int64_t{args.seqs.n_seqs()} * heads, [&](int64_t task, int thread) {
    AttendHead(args, static_cast<int>(task / heads), static_cast<int>(task % heads), tiles[thread],
               buffers[thread]);
  });
}

}  // namespace ovq
