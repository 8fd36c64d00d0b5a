// The update of a dictionary at the end of a chunk, OVQ paper eq. 18-19. Every key k_i of the chunk
// is assigned to a slot j, some of them to new slots; then, with sums over the keys assigned to j
// (Dv alike, from values):
//   c_j += their number,  Dk_j += sum_i (k_i - Dk_j) / c_j
// A count stays at 2^32 - 1 once it is there. Two variants from the KVM paper's published code
// (AttentionBlocks::normalizes, delta_scale), where p_i is the attention output of k_i times
// delta_scale over the dictionary before the update, bias included:
//   delta rule   Dv_j += sum_i (v_i - p_i) / c_j
//   normalizes   Dk_j /= max(|Dk_j|, kSmallestNorm); also Dv_j unless there is a delta rule
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq::kernels {

inline constexpr float kSmallestNorm = 1e-12f;

// The discrete half (paper section 3.2, get_nn_assignments of appendix 8.3). The n_next - n_old
// keys with the lowest scores become slots n_old, n_old + 1, ... in ascending order of score, ties
// to the lower key; the others go to their best slot. With n_old = 0, key 0 becomes slot 0, the
// score is the dot product with it, and the others go there. order is scratch. All spans
// [chunk_len].
void AssignChunk(std::span<const float> score, std::span<const int32_t> best_slot, int64_t n_old,
                 int64_t n_next, std::span<int32_t> order, std::span<int32_t> assignment);

// Buffers of one thread for the delta rule's predictions.
struct PredictionBuffers {
  KvBlock* blocks;     // the dictionary's blocks
  float* queries;      // [chunk_len][head_dim]
  const float** rows;  // [chunk_len] -> queries
  int32_t* position;   // [chunk_len] zeros
  float* out;          // [chunk_len][value_stride]
  float* scratch;
};

// Buffers of one thread for the update of a chunk.
struct ChunkBuffers {
  float* keys;                  // [chunk_len][head_dim]
  float* values;                // [chunk_len][value_head_dim]
  float* score;                 // [ceil(chunk_len / 64)][64]
  int32_t* order;               // [chunk_len]
  int32_t* assignment;          // [chunk_len]
  float* old_row;               // [max(head_dim, value_head_dim)]
  float* sum;                   // [max(head_dim, value_head_dim)]
  PredictionBuffers read = {};  // only with a delta rule
};
ChunkBuffers MakeChunkBuffers(ScratchScope& scope, const AttentionBlocks& blocks);

void UpdateChunkCpu(const AttentionBlocks& blocks, const FullChunk& chunk,
                    const ChunkBuffers& buffers);
// Updates the dictionaries of all heads and sequences whose tokens of this wave end a chunk.
void UpdateChunksCuda(DeviceContext& context, const AttentionArgs& args, int wave);
// With a delta rule, the first part of UpdateChunksCuda: pending values become v - p, rounded to
// nearest.
void SubtractPredictionsCuda(DeviceContext& context, const AttentionArgs& args, int wave);

}  // namespace ovq::kernels
