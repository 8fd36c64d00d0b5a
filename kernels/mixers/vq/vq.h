// Attention over a trained codebook (Transformer-VQ in linear form; OVQ paper eq. 3-6): every key
// is replaced by its nearest code, so the state is one count and one mean value per code.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/mixer.h"

namespace ovq {

// The last, unfinished block of 64 tokens waits beside the means, so that a prompt is read in
// blocks; in exact arithmetic the answer is the same for any block length.
inline constexpr int kVqChunk = kBlockSlots;

// Codes of one layer, packed for the kernels, in the device's memory.
struct Codebook {
  int64_t n_codes = 0;
  Buffer keys;       // float [n_kv_heads][blocks][head_dim][64], padded with zeros
  Buffer half_norm;  // float [n_kv_heads][blocks * 64]: |code|^2 / 2
  int64_t blocks() const { return BlocksOf(n_codes); }
};

// One head of one session's state; float32 whatever the server's state dtype, as it never grows.
struct VqHead {
  uint32_t* counts;       // [blocks * 64]
  float* log_counts;      // [blocks * 64], of codes with a count
  float* values;          // [blocks][64][value_stride] mean value of each code
  int32_t* pending_code;  // [64] codes of the unfinished chunk's keys
  float* pending_values;  // [64][value_stride]
};

// Where a session's parts lie. Index: a block for values, an element for the others; pending_values
// is one block.
struct VqPlaces {
  StatePlace counts, log_counts, values, pending_code, pending_values;
};

class VqState {
 public:
  VqState(const AttentionShape& shape, int64_t n_codes);
  const MixerState& layout() const { return layout_; }
  VqPlaces Places(const LayerState& where) const;
  std::vector<StateExtent> Overwrites(const LayerState& where, const TokenRange& tokens) const;
  VqHead Head(std::byte* session, const LayerState& where, int kv_head) const;

 private:
  int n_kv_heads_;
  int64_t slots_;  // codes rounded up to whole blocks
  int value_stride_;
  MixerState layout_;
};

struct VqArgs {
  const AttentionShape& shape;
  const Codebook& codebook;
  const VqState& state;
  const StepSeqs& seqs;
  const LayerState& where;
  const AttentionRows& rows;
};

void VqAttentionRef(DeviceContext& context, const VqArgs& args);
void VqAttentionCpu(DeviceContext& context, const VqArgs& args);
void VqAttentionCuda(DeviceContext& context, const VqArgs& args);

absl::StatusOr<std::unique_ptr<SequenceMixer>> MakeVqAttention(const MixerSpec& spec);
absl::StatusOr<MixerState> VqAttentionState(const StateSpec& spec);

}  // namespace ovq
