// What the end of a chunk does to a dictionary, OVQ paper eq. 18-19. Every key of the chunk goes to
// a slot j, some of them to new slots; then, over the keys that went to j (Dv alike, from values):
//   c_j += their number,  Dk_j += sum (k_i - Dk_j) / c_j
// A count stays at 2^32 - 1 once it is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixers/common/attend.h"

namespace ovq {

// The discrete half (paper section 3.2, get_nn_assignments of appendix 8.3): the keys with the
// lowest score become slots n_old, n_old + 1, ... in ascending order of it, ties to the lower key;
// the others go to their best slot. With n_old = 0 key 0 becomes slot 0, the score is the dot
// product with it, and the others go there. order is scratch. All spans [chunk_len].
void AssignChunk(std::span<const float> score, std::span<const int32_t> best_slot, int64_t n_old,
                 int64_t n_next, std::span<int32_t> order, std::span<int32_t> assignment);

// One thread's.
struct ChunkBuffers {
  float* keys;          // [chunk_len][head_dim]
  float* values;        // [chunk_len][value_head_dim]
  float* score;         // [ceil(chunk_len / 64)][64]
  int32_t* order;       // [chunk_len]
  int32_t* assignment;  // [chunk_len]
  float* old_row;       // [max(head_dim, value_head_dim)]
  float* sum;           // the same
};
ChunkBuffers MakeChunkBuffers(ScratchScope& scope, const AttentionBlocks& blocks);

void UpdateChunkCpu(const AttentionBlocks& blocks, const FullChunk& chunk,
                    const ChunkBuffers& buffers);
// Of all heads and sequences whose rows of this wave end a chunk.
void UpdateChunksCuda(DeviceContext& context, const AttentionStep& step, int wave);

}  // namespace ovq
