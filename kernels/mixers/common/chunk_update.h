// What the end of a chunk does to a dictionary, OVQ paper eq. 18-19. Every key of the chunk goes to
// a slot j, some of them to new slots; then, over the keys that went to j (Dv alike, from values):
//   c_j += their number,  Dk_j += sum (k_i - Dk_j) / c_j
// A count stays at 2^32 - 1 once it is there. Two rules of the KVM paper's published code change
// that (AttentionBlocks::normalizes, delta_scale), p_i being what k_i times delta_scale reads of
// the dictionary as it was, bias included:
//   delta rule   Dv_j += sum (v_i - p_i) / c_j
//   normalizes   Dk_j, and Dv_j but for the delta rule, /= max(|Dk_j|, kSmallestNorm)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq {

inline constexpr float kSmallestNorm = 1e-12f;

// The discrete half (paper section 3.2, get_nn_assignments of appendix 8.3): the keys with the
// lowest score become slots n_old, n_old + 1, ... in ascending order of it, ties to the lower key;
// the others go to their best slot. With n_old = 0 key 0 becomes slot 0, the score is the dot
// product with it, and the others go there. order is scratch. All spans [chunk_len].
void AssignChunk(std::span<const float> score, std::span<const int32_t> best_slot, int64_t n_old,
                 int64_t n_next, std::span<int32_t> order, std::span<int32_t> assignment);

// What a chunk's keys read of a dictionary; of one thread.
struct PredictionBuffers {
  KvBlock* blocks;     // of the dictionary
  float* queries;      // [chunk_len][head_dim]
  const float** rows;  // [chunk_len] -> queries
  int32_t* position;   // [chunk_len] zeros
  float* out;          // [chunk_len][value_stride]
  float* scratch;
};

// One thread's.
struct ChunkBuffers {
  float* keys;                  // [chunk_len][head_dim]
  float* values;                // [chunk_len][value_head_dim]
  float* score;                 // [ceil(chunk_len / 64)][64]
  int32_t* order;               // [chunk_len]
  int32_t* assignment;          // [chunk_len]
  float* old_row;               // [max(head_dim, value_head_dim)]
  float* sum;                   // the same
  PredictionBuffers read = {};  // of a delta rule
};
ChunkBuffers MakeChunkBuffers(ScratchScope& scope, const AttentionBlocks& blocks);

void UpdateChunkCpu(const AttentionBlocks& blocks, const FullChunk& chunk,
                    const ChunkBuffers& buffers);
// Of all heads and sequences whose rows of this wave end a chunk.
void UpdateChunksCuda(DeviceContext& context, const AttentionArgs& args, int wave);
// Its first part with a delta rule: pending values become v - p, rounded to nearest.
void SubtractPredictionsCuda(DeviceContext& context, const AttentionArgs& args, int wave);

}  // namespace ovq
