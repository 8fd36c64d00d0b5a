// Online vector-quantized attention: softmax over a growing dictionary of key/value centroids and
// the tokens of the unfinished chunk. OVQ paper equations 15 and 17-19; exactly:
// docs/model-format.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

// The update on CUDA keeps 12 bytes a key of the chunk in shared memory, of which every supported
// GPU has 99 KiB or more.
inline constexpr int kMaxCudaChunkLen = 8192;

struct OvqConfig {
  AttentionShape shape;
  int chunk_len;             // L
  int64_t default_slot_cap;  // N of sessions that name none
  DType dtype;               // of keys, values and centroids
  int layer;                 // only the random numbers of the updates depend on it
};

// Eq. 17: n(t) = floor(t N / (t + N)), n(0) = 0; exact for every position and N < 2^31. As
// t N / (t + N) = N - N^2 / (t + N), 64 bits are enough.
constexpr int64_t CentroidsAt(int64_t t, int64_t max_centroids) {
  const auto n = static_cast<uint64_t>(max_centroids);
  const uint64_t sum = static_cast<uint64_t>(t) + n;
  return sum == 0 ? 0 : max_centroids - static_cast<int64_t>((n * n + sum - 1) / sum);
}
// Centroids by eq. 17 as they stand after the last full chunk; a session's slot cap is its N.
Growth GrowsByChunk(int chunk_len, int64_t default_slot_cap);

// One head of one session's state. Block i of the dictionary holds centroids 64 i .. 64 i + 63,
// block i of the pending chunk its tokens 64 i .. 64 i + 63.
struct OvqHead {
  std::byte* pending_keys;    // [pending_blocks][head_dim][64]
  std::byte* pending_values;  // [pending_blocks][64][value_stride]
  float* best_score;          // [chunk_len] of each pending key over the dictionary
  int32_t* best_slot;         // [chunk_len]
  std::byte* first_block;     // this head's part of block 0
  size_t block_stride;
  size_t key_block_bytes;
  size_t value_block_bytes;
  size_t log_counts_offset, keys_offset, values_offset;  // within this head's part of a block

  std::byte* block(int64_t i) const { return first_block + static_cast<size_t>(i) * block_stride; }
  uint32_t* counts(int64_t i) const { return reinterpret_cast<uint32_t*>(block(i)); }
  float* log_counts(int64_t i) const {
    return reinterpret_cast<float*>(block(i) + log_counts_offset);
  }
  std::byte* keys(int64_t i) const { return block(i) + keys_offset; }
  std::byte* values(int64_t i) const { return block(i) + values_offset; }
  std::byte* pending_keys_block(int64_t i) const {
    return pending_keys + static_cast<size_t>(i) * key_block_bytes;
  }
  std::byte* pending_values_block(int64_t i) const {
    return pending_values + static_cast<size_t>(i) * value_block_bytes;
  }
};

// Where a session's parts lie; the indices of best_score and best_slot are elements of the chunk.
struct OvqPlaces {
  StatePlace pending_keys, pending_values, best_score, best_slot;
  StatePlace counts, log_counts, keys, values;
};

// fixed: pending keys and values, best_score, best_slot, each [n_kv_heads][...]
// block: per kv head: counts u32 [64] | log_counts f32 [64] | keys [head_dim][64] |
//        values [64][value_stride], so that one head's part of a block is one run of memory
class OvqState {
 public:
  explicit OvqState(const OvqConfig& config);
  const MixerState& layout() const { return layout_; }
  OvqPlaces Places(const LayerState& where) const;
  std::vector<StateExtent> Overwrites(const LayerState& where, const TokenRange& tokens) const;
  OvqHead Head(std::byte* session, const LayerState& where, int kv_head) const;

 private:
  int n_kv_heads_;
  int chunk_len_;
  int64_t pending_blocks_;
  size_t key_block_bytes_;
  size_t value_block_bytes_;
  size_t head_block_bytes_;  // of one head's part of a block
  MixerState layout_;
};

struct OvqArgs {
  const OvqConfig& config;
  const OvqState& state;
  const StepSeqs& seqs;
  const LayerState& where;
  const AttentionRows& rows;

  const LiveSlots& live() const { return seqs.live[where.growth]; }
};

void OvqAttentionRef(DeviceContext& context, const OvqArgs& args);
void OvqAttentionCpu(DeviceContext& context, const OvqArgs& args);
void OvqAttentionCuda(DeviceContext& context, const OvqArgs& args);
// Updates the dictionaries of the sequences whose rows of this wave end a chunk.
void OvqUpdateCuda(DeviceContext& context, const OvqArgs& args, int wave);

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeOvqAttention(const MixerSpec& spec);
absl::StatusOr<MixerState> OvqAttentionState(const StateSpec& spec);

}  // namespace ovq
