// Attention of a tile of queries over blocks of 64 key/value slots, used by attend.h. A block is a
// part of a dictionary, a pending chunk, a window or a full cache.
//
// Layout of a block: keys [head_dim][64], transposed, so that a score is one sequential chain of
// fused multiply-adds over the channels in every lane. Its bits are then the same on every vector
// width and wherever the query stands in a tile, as the discrete choices need. values
// [64][value_stride], value_stride = value_head_dim rounded up to 16, padded with zeros. In
// types with scales either is followed by its slots' exponents (slots.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {

struct KvBlock {
  const void* keys;    // [head_dim][64]
  const void* values;  // [64][value_stride]
  const float* bias;   // [64] added to the scores (ln count), or null
  // Dictionary block: `live` slots, open to every query. Else live = -1: slot i holds position
  // begin + i, open to queries at that position or after, within the window.
  int32_t live;
  int32_t begin;
};

// Blocks per segment. Each segment is summed on its own and the segments' sums are folded in order,
// always, so that threads may share a row's blocks without changing its bits.
constexpr int kCpuSegmentBlocks = 8;
// Below any score of finite inputs, and finite: the initial running maximum, on every device.
constexpr float kLowestScore = -3.0e38f;

// One tile of queries and probes (together its rows) of one key/value head. All rows read the same
// blocks in the same order, masked slots included, so a row's bits never depend on its neighbours.
struct BlockAttention {
  DType dtype;  // of keys and values
  int head_dim;
  int value_stride;
  int32_t window;  // positions a query sees, its own included; 0 = all
  std::span<const KvBlock> blocks;

  const float* const* rows;  // [n_queries + n_probes] -> [head_dim], queries first

  // Queries: softmax(q . k + bias) v. q holds the score scale already.
  int n_queries;
  const int32_t* query_position;  // [n_queries], relative to the origin of KvBlock::begin
  float* out;                     // [n_queries][value_stride]

  // Probes: the slot of a dictionary block with the highest k . k; ties to the lowest slot.
  int n_probes;
  float* best_score;   // [n_probes]
  int32_t* best_slot;  // [n_probes], 0 if there is no dictionary block

  float* scratch;  // BlockAttentionScratch() floats

  int n_segments() const {
    return std::max(1,
                    (static_cast<int>(blocks.size()) + kCpuSegmentBlocks - 1) / kCpuSegmentBlocks);
  }
};

// The running sums of a tile's rows over one segment, or over the segments so far.
struct SegmentSums {
  float* max;          // [n_queries] m
  float* sum;          // [n_queries] l
  float* out;          // [n_queries][value_stride] acc
  float* best_score;   // [n_probes]
  int32_t* best_slot;  // [n_probes]
};

// Floats of memory for the sums of n_rows queries and probes together.
constexpr size_t SegmentSumsFloats(int n_rows, int value_stride) {
  return static_cast<size_t>(n_rows) * static_cast<size_t>(value_stride + 4);
}
SegmentSums SegmentSumsIn(float* memory, int n_queries, int n_probes, int value_stride);

// Floats of scratch for one segment, and for a whole tile, of up to n_rows queries and probes
// together.
size_t SegmentScratch(int n_rows, int head_dim, int value_stride);
size_t BlockAttentionScratch(int n_rows, int head_dim, int value_stride);

// Attends with an online softmax. Within a segment, block after block, with s_j = q . k_j + bias_j:
//   m' = max(m, max_j s_j), p_j = exp(s_j - m'), l' = l exp(m - m') + sum_j p_j,
//   acc' = acc exp(m - m') + sum_j p_j v_j
// Folds segment b into segment a: m = max(m_a, m_b), l = l_a exp(m_a - m) + l_b exp(m_b - m), acc
// likewise; out = acc / l. Scores and sums in float32, sequential over channels and slots; Highway,
// any instruction set.
void AttendBlocksCpu(const BlockAttention& tile);

// AttendBlocksCpu in parts. This computes the sums of one segment, with SegmentScratch() floats in
// place of tile.scratch; several threads may compute some each. Blocks before `fetched` are
// prefetched.
void AttendSegmentCpu(const BlockAttention& tile, int segment, size_t fetched, float* scratch,
                      const SegmentSums& sums);
// Folds `next` into `total`, the sums of all segments before it.
void FoldSegmentCpu(const BlockAttention& tile, const SegmentSums& next, const SegmentSums& total);
// Writes tile.out, best_score and best_slot from the sums of all segments.
void FinishSegments(const BlockAttention& tile, const SegmentSums& total);

// scores[64] = row[head_dim] . keys[head_dim][64] of one block, with the arithmetic of
// AttendBlocksCpu.
void ScoreBlockCpu(const float* row, const void* keys, DType dtype, int head_dim, float* scores);

// Stores one slot of a block, a key times scale, rounded to nearest.
void StoreKey(const float* key, int head_dim, DType dtype, void* keys, int slot,
              float scale = 1.0f);
void StoreValue(const float* value, int value_head_dim, int value_stride, DType dtype, void* values,
                int slot);
// Load a slot back as float32.
void LoadKey(const void* keys, DType dtype, int head_dim, int slot, float* key);
void LoadValue(const void* values, DType dtype, int value_head_dim, int value_stride, int slot,
               float* value);

}  // namespace ovq::kernels
