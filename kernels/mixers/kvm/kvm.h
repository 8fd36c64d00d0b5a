// Key-Value Means: one softmax over a block sliding window and over slots, to which tokens
// that leave the window are appended or merged. KVM paper section 4; equations in README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attention.h"

namespace ovq::kernels {

// The update on CUDA keeps 24 bytes a token of the chunk in shared memory.
inline constexpr int64_t kMaxKvmCudaChunkLen = 2048;

enum class KvmBudget : uint8_t { kFixed, kPowerLaw, kSaturation };

// The number of slots, where W = chunk_len and nb = window_chunks is the window's length in
// chunks.
struct KvmLaw {
  KvmBudget budget = KvmBudget::kFixed;        // state_budget_mode
  int64_t chunk_len = 256, window_chunks = 2;  // chunk_len, n_bswa_chunks
  // kPowerLaw: factor * position^exponent (state_growth_factor, state_growth_exponent)
  double factor = 1, exponent = 0.5;
  int64_t saturation_n = 0;  // kSaturation: N position / (N + position); 0: not given
  // For kPowerLaw and kSaturation: rounds down to a multiple, then at least min_slots
  // (state_round_down, state_min_len).
  int64_t round_down = 1, min_slots = -1;
  int64_t max_chunks = 1;  // upper bound of slots, in chunks: n_max_d_chunks

  // Slots after c whole chunks, before a session's cap: 0 for c < nb, else
  //   max(W, min(max(T(c W), min_slots), (c + 1 - nb) W, max_chunks W))
  // It never grows by more than W a chunk.
  int64_t SlotsAt(int64_t chunks) const;
  Growth AsGrowth(int64_t default_slot_cap) const;
};

// Section "kvm" of config.json; the gates are use_merge_gate_keys, use_merge_gate_values,
// apply_merge_gate_to_initial_state and apply_merge_gate_to_appends.
struct KvmRule {
  KvmLaw law;
  int64_t default_slot_cap = 4096;  // of sessions that name none: max_centroids
  int sink_len = 1;                 // the first slots, into which nothing is merged
  int masked_dims = 0;              // first channels of a key, zeroed before it enters a slot
  bool gate_keys = true, gate_values = true, gate_first = false, gate_appends = true;
  bool head_temps = true;  // use_head_temps
  // True: a slot's value keeps the length of its first value. False: lengths count merges.
  // use_vlens
  bool value_lengths = true;
  // Rounds slot values to bfloat16 whatever the dtype: values_round_to_bfloat16.
  bool round_values = false;

  constexpr bool gated() const { return gate_keys || gate_values; }
};
struct KvmConfig : AttentionConfig, KvmRule {};
void ReadConfig(const FieldReaders& from, KvmConfig& config);

// The state's places beside the window and the slots' keys and values.
struct KvmParts {
  StatePlace gates;    // float, indexed by window token; unset if all gates are 1
  StatePlace lengths;  // float [64] per block of slots
  // The sums behind the slots' keys and values, in the same layout.
  StatePlace key_sums, value_sums;
};
struct KvmWeights {
  const float* norm_weight;  // [head_dim]
  const float* norm_bias;    // [head_dim]
  const float* front_temps;  // [n_heads], factor of window keys
  const float* state_temps;  // [n_heads], factor of a slot's key after its norm
};

// Slots are the dictionary of `blocks`; window tokens, with keys stored times their
// temperature, are its recent tokens.
struct KvmArgs : AttentionArgs {
  KvmRule config;
  KvmParts parts;
  KvmWeights weights;
  const float* gate_logits;  // [n_tokens, n_heads]; null: all gates are 1
};

// fixed: window keys [n_heads][blocks of the window][head_dim][64] and values, gates [n_heads][nb
// W] block: per head: lengths f32 [64] | keys [head_dim][64] | values [64][value_stride] | key sums
// |
//        value sums, so that one head's part of a block is one run of memory
class KvmAttention final : public Attention {
 public:
  using Config = KvmConfig;
  KvmAttention(const StateSpec& spec, const KvmConfig& config);
  AttentionBlocks Blocks(const LayerState& where) const override;

 private:
  void LoadOwn(const MixerSpec& spec) override;
  void Attend(const LayerArgs& layer_args, const AttentionArgs& args) const override;
  std::vector<StateExtent> OwnExtents(const LayerState& where,
                                      const TokenRange& tokens) const override;

  const KvmConfig config_;
  Linear gate_;
  Buffer norm_weight_, norm_bias_, front_temps_, state_temps_;  // in the device's memory
};

void KvmAttentionCpu(DeviceContext& context, const KvmArgs& args);
void KvmAttentionCuda(DeviceContext& context, const KvmArgs& args);

}  // namespace ovq::kernels
