// Attention over blocks of 64 key/value slots: what the softmax, ovq and vq mixers share. A block
// is a part of a dictionary, of a pending chunk, of a window or of a full cache.
//
// Layout of a block: keys [head_dim][64], transposed, so that a score is one sequential chain of
// fused multiply-adds over the channels in every lane. Its bits are then the same on every vector
// width and wherever the query stands in a tile, which the discrete choices need. values
// [64][value_stride], value_stride = value_head_dim rounded up to 16, padded with zeros. Of int8
// either is followed by its slots' exponents (int8_rows.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

constexpr int kValueAlignment = 16;
constexpr int ValueStride(int value_head_dim) {
  return (value_head_dim + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

struct KvBlock {
  const void* keys;    // [head_dim][64]
  const void* values;  // [64][value_stride]
  const float* bias;   // [64] added to the scores (ln count), or null
  // Dictionary block: `live` slots, open to every query. Else live = -1: slot i holds position
  // begin + i, open to queries at that position or after, within the window.
  int32_t live;
  int32_t begin;
};

// One tile of rows of one key/value head. All rows meet the same blocks in the same order, masked
// slots included, so that a row's bits never depend on its neighbours.
struct BlockAttention {
  DType dtype;  // of keys and values
  int head_dim;
  int value_stride;
  int32_t window;  // positions a query sees, its own included; 0 = all
  std::span<const KvBlock> blocks;

  const float* const* rows;  // [n_queries + n_probes] -> [head_dim], queries first

  // Queries: softmax(q . k + bias) v. q holds the score scale already.
  int n_queries;
  const int32_t* query_position;  // [n_queries], same origin as KvBlock::begin
  float* out;                     // [n_queries][value_stride]

  // Probes: the slot of a dictionary block with the highest k . k; ties to the lowest slot.
  int n_probes;
  float* best_score;   // [n_probes]
  int32_t* best_slot;  // [n_probes], 0 if there is no dictionary block

  float* scratch;  // BlockAttentionScratch() floats
};

// Floats of scratch for a tile of up to n_rows queries and probes together.
size_t BlockAttentionScratch(int n_rows, int head_dim, int value_stride);

// Online softmax, one block after another: m' = max(m, max s), p = exp(s - m'),
// l = l exp(m - m') + sum p, acc = acc exp(m - m') + sum p v; out = acc / l.
// Scores and sums in float32, sequential over channels and slots; Highway, any instruction set.
void AttendBlocksCpu(const BlockAttention& tile);

// scores[64] = row . keys of one block, the arithmetic of AttendBlocksCpu.
void ScoreBlockCpu(const float* row, const void* keys, DType dtype, int head_dim, float* scores);

// Writes one slot of a block, a key times scale, rounded to nearest.
void StoreKey(const float* key, int head_dim, DType dtype, void* keys, int slot,
              float scale = 1.0f);
void StoreValue(const float* value, int value_head_dim, int value_stride, DType dtype, void* values,
                int slot);
// Reads them back.
void LoadKey(const void* keys, DType dtype, int head_dim, int slot, float* key);
void LoadValue(const void* values, DType dtype, int value_head_dim, int value_stride, int slot,
               float* value);

}  // namespace ovq
