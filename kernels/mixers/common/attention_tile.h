// CPU side of a tile: up to 64 tokens of one key/value head, with the buffers of one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/device.h"
#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq {

inline constexpr int kTileTokens = kBlockSlots;

class AttentionTile {
 public:
  // max_tokens: the longest tile; max_blocks: the most blocks a tile meets.
  AttentionTile(ScratchScope& scope, const AttentionShape& shape, int max_tokens,
                int64_t max_blocks);

  void ClearBlocks() { n_blocks_ = 0; }
  void AddBlock(const KvBlock& block) { blocks_[n_blocks_++] = block; }

  // Attends rows [first_row, first_row + n_tokens) of kv_head over the added blocks and writes
  // rows.out. position: of the first token, in the blocks' origin. probe: also find every key's
  // best dictionary slot, into best_score and best_slot [n_tokens].
  void Attend(const AttentionRows& rows, int kv_head, int64_t first_row, int n_tokens,
              int32_t position, int32_t window, DType dtype, bool probe = false,
              float* best_score = nullptr, int32_t* best_slot = nullptr);

 private:
  void WriteOutput(const AttentionRows& rows, int kv_head, int64_t first_row, int n_tokens) const;

  AttentionShape shape_;
  int value_stride_;
  KvBlock* blocks_;
  int64_t n_blocks_ = 0;
  const float** rows_;  // [max_tokens * (group + 1)]
  int32_t* position_;   // [max_tokens * group]
  float* out_;          // [max_tokens * group][value_stride]
  float* scratch_;
};

// Writes the keys and values of n_tokens rows into slots [slot, slot + n_tokens) of one block.
void StoreTokens(const AttentionShape& shape, const AttentionRows& rows, int kv_head,
                 int64_t first_row, int n_tokens, DType dtype, void* keys, void* values, int slot);

// One tile buffer a thread, so that parallel tasks allocate nothing.
std::vector<AttentionTile> MakeTiles(ScratchScope& scope, const DeviceContext& context,
                                     const AttentionShape& shape, int max_tokens,
                                     int64_t max_blocks);

}  // namespace ovq
