// Softmax attention over the last `window` tokens (sliding_attention, with RoPE) or over all of
// them (full_attention, without position encoding): OVQ paper eq. 1 and appendix 8.2.
#pragma once

#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

// Where a session's keys and values of one layer lie. Token t is slot t % 64 of block t / 64.
// Sliding: the newest ring_blocks() blocks, block b in place b % ring_blocks(), in the fixed part.
// Full: block b is block b of the growing part.
class SoftmaxState {
 public:
  SoftmaxState(const AttentionShape& shape, int32_t window, DType dtype);

  const MixerState& layout() const { return layout_; }
  DType dtype() const { return dtype_; }
  // Enough for the 64-aligned block of a query and every block its window reaches into.
  int64_t ring_blocks() const { return ring_blocks_; }
  int64_t first_block(int64_t block) const;  // oldest block that a query in `block` meets
  // Index: a block's place in the ring, or the block itself for full attention.
  StatePlace keys_place(const LayerState& where) const;
  StatePlace values_place(const LayerState& where) const;
  std::vector<StateExtent> Overwrites(const LayerState& where, const TokenRange& tokens) const;
  void* keys(std::byte* session, const LayerState& where, int64_t block, int kv_head) const;
  void* values(std::byte* session, const LayerState& where, int64_t block, int kv_head) const;

 private:
  StatePlace Place(const LayerState& where, int field, size_t block_bytes) const;
  int64_t Index(int64_t block) const { return window_ == 0 ? block : block % ring_blocks_; }

  int n_kv_heads_;
  int32_t window_;
  DType dtype_;
  int64_t ring_blocks_;  // 0 for full attention
  size_t key_bytes_;     // of one block of one head
  size_t value_bytes_;
  MixerState layout_;
};

struct SoftmaxArgs {
  const AttentionShape& shape;
  int32_t window;  // tokens a query sees, its own included; 0 = all
  const SoftmaxState& state;
  const StepSeqs& seqs;
  const LayerState& where;
  const AttentionRows& rows;
};

void SoftmaxAttentionRef(DeviceContext& context, const SoftmaxArgs& args);
void SoftmaxAttentionCpu(DeviceContext& context, const SoftmaxArgs& args);
void SoftmaxAttentionCuda(DeviceContext& context, const SoftmaxArgs& args);

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeSlidingAttention(const MixerSpec& spec);
absl::StatusOr<MixerState> SlidingAttentionState(const StateSpec& spec);
absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeFullAttention(const MixerSpec& spec);
absl::StatusOr<MixerState> FullAttentionState(const StateSpec& spec);

}  // namespace ovq
