// Attention over a codebook on the CPU, OVQ paper eq. 3-6. Of one head: C [n_codes, head_dim],
// counts c, means V [n_codes, value_head_dim], code z(k) = argmin_j |k - C_j|:
//   o_t = softmax([q_t C^T + ln c | q_t C_z^T]) [V | V_z]     z: codes of the chunk's keys up to t
//   at a chunk's end   V_j += sum (v_i - V_j) / c_j           over the values whose key has code j
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/parallel.h"
#include "kernels/mixers/common/attention_tile.h"
#include "kernels/mixers/vq/vq.h"

namespace ovq {
namespace {

struct Buffers {
  float* pending_keys;  // [head_dim][64] the chunk's keys as codes
  float* bias;          // [blocks * 64] ln count, -infinity for codes not seen yet
  float* score;         // [64]
};

// One head of one sequence with this thread's buffers.
struct HeadTask {
  const VqArgs& args;
  const VqHead& head;
  int kv_head;
  const float* codes;      // [blocks][head_dim][64]
  const float* half_norm;  // [blocks * 64]
  const Buffers& buffers;

  const float* code_block(int64_t b) const { return codes + b * kBlockSlots * args.shape.head_dim; }
};

// argmin |key - code|^2 = argmax key . code - |code|^2 / 2, ties to the lowest code.
int32_t NearestCode(const HeadTask& task, const float* key) {
  float best = -std::numeric_limits<float>::infinity();
  int32_t nearest = 0;
  const int64_t n_codes = task.args.codebook.n_codes;
  for (int64_t first = 0; first < n_codes; first += kBlockSlots) {
    ScoreBlockCpu(key, task.code_block(first / kBlockSlots), DType::kF32, task.args.shape.head_dim,
                  task.buffers.score);
    const int64_t live = std::min<int64_t>(kBlockSlots, n_codes - first);
    for (int64_t i = 0; i < live; ++i) {
      const float score = task.buffers.score[i] - task.half_norm[first + i];
      if (score > best) {
        best = score;
        nearest = static_cast<int32_t>(first + i);
      }
    }
  }
  return nearest;
}

void StoreCodes(const HeadTask& task, int64_t first_row, int offset, int n_tokens) {
  const AttentionShape& shape = task.args.shape;
  const AttentionRows& rows = task.args.rows;
  for (int t = 0; t < n_tokens; ++t) {
    const int64_t row = (first_row + t) * rows.stride;
    task.head.pending_code[offset + t] =
        NearestCode(task, rows.k + row + int64_t{task.kv_head} * shape.head_dim);
    StoreValue(rows.v + row + int64_t{task.kv_head} * shape.value_head_dim, shape.value_head_dim,
               ValueStride(shape.value_head_dim), DType::kF32, task.head.pending_values,
               offset + t);
  }
  std::fill_n(task.buffers.pending_keys, shape.head_dim * kBlockSlots, 0.0f);
  for (int i = 0; i < offset + n_tokens; ++i) {
    const int32_t code = task.head.pending_code[i];
    const float* from = task.code_block(code / kBlockSlots) + code % kBlockSlots;
    for (int c = 0; c < shape.head_dim; ++c) {
      task.buffers.pending_keys[c * kBlockSlots + i] = from[c * kBlockSlots];
    }
  }
}

void AddBlocks(const HeadTask& task, AttentionTile& tile) {
  const int value_stride = ValueStride(task.args.shape.value_head_dim);
  const int64_t n_codes = task.args.codebook.n_codes;
  for (int64_t j = 0; j < n_codes; ++j) {
    task.buffers.bias[j] =
        task.head.counts[j] > 0 ? task.head.log_counts[j] : -std::numeric_limits<float>::infinity();
  }
  tile.ClearBlocks();
  for (int64_t first = 0; first < n_codes; first += kBlockSlots) {
    tile.AddBlock({.keys = task.code_block(first / kBlockSlots),
                   .values = task.head.values + first * value_stride,
                   .bias = task.buffers.bias + first,
                   .live = static_cast<int32_t>(std::min<int64_t>(kBlockSlots, n_codes - first)),
                   .begin = 0});
  }
  tile.AddBlock({.keys = task.buffers.pending_keys,
                 .values = task.head.pending_values,
                 .bias = nullptr,
                 .live = -1,
                 .begin = 0});
}

// One code after another, its tokens in ascending order: the order of a mean's sum is fixed. The
// sum uses the new count and the old mean.
void MergeChunk(const HeadTask& task) {
  const int dv = task.args.shape.value_head_dim, value_stride = ValueStride(dv);
  int32_t order[kVqChunk];
  const int32_t* code = task.head.pending_code;
  for (int32_t i = 0; i < kVqChunk; ++i) order[i] = i;
  std::sort(order, order + kVqChunk,
            [&](int32_t a, int32_t b) { return code[a] != code[b] ? code[a] < code[b] : a < b; });
  for (int begin = 0, end = 0; begin < kVqChunk; begin = end) {
    const int32_t j = code[order[begin]];
    for (end = begin + 1; end < kVqChunk && code[order[end]] == j;) ++end;
    uint32_t& count = task.head.counts[j];
    count = static_cast<uint32_t>(
        std::min<uint64_t>(uint64_t{count} + (end - begin), std::numeric_limits<uint32_t>::max()));
    task.head.log_counts[j] = std::log(static_cast<float>(count));
    float* mean = task.head.values + static_cast<size_t>(j) * value_stride;
    for (int c = 0; c < dv; ++c) {
      float sum = 0;
      for (int i = begin; i < end; ++i) {
        sum += task.head.pending_values[order[i] * value_stride + c] - mean[c];
      }
      mean[c] += sum / static_cast<float>(count);
    }
  }
}

void AttendHead(const HeadTask& task, int s, AttentionTile& tile) {
  const StepSeqs& seqs = task.args.seqs;
  int64_t row = seqs.row_begin[s];
  const int64_t end_row = seqs.row_begin[s + 1];
  int64_t position = seqs.start_pos[s];
  while (row < end_row) {
    const int offset = static_cast<int>(position % kVqChunk);
    const int n_tokens = static_cast<int>(std::min<int64_t>(kVqChunk - offset, end_row - row));
    StoreCodes(task, row, offset, n_tokens);
    AddBlocks(task, tile);
    tile.Attend(task.args.rows, task.kv_head, row, n_tokens, offset, /*window=*/0, DType::kF32);
    if (offset + n_tokens == kVqChunk) MergeChunk(task);
    row += n_tokens;
    position += n_tokens;
  }
}

}  // namespace

void VqAttentionCpu(DeviceContext& context, const VqArgs& args) {
  ScratchScope scope(context);
  const AttentionShape& shape = args.shape;
  const int64_t blocks = args.codebook.blocks();
  const int max_tokens = std::min(kTileTokens, args.seqs.longest_run());
  std::vector<AttentionTile> tiles = MakeTiles(scope, context, shape, max_tokens, blocks + 1);
  std::vector<Buffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) {
    const auto slots = static_cast<size_t>(blocks * kBlockSlots);
    buffers.push_back(
        {.pending_keys = scope.Allocate<float>(static_cast<size_t>(shape.head_dim) * kBlockSlots),
         .bias = scope.Allocate<float>(slots),
         .score = scope.Allocate<float>(kBlockSlots)});
  }
  const int heads = shape.n_kv_heads;
  ParallelFor(context, int64_t{args.seqs.n_seqs()} * heads, [&](int64_t task, int thread) {
    const int s = static_cast<int>(task / heads), h = static_cast<int>(task % heads);
    const VqHead head = args.state.Head(args.seqs.state[s], args.where, h);
    const int64_t slots = blocks * kBlockSlots;
    AttendHead({args, head, h, args.codebook.keys.as<const float>() + h * slots * shape.head_dim,
                args.codebook.half_norm.as<const float>() + h * slots, buffers[thread]},
               s, tiles[thread]);
  });
}

}  // namespace ovq
