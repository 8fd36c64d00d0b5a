// Key-Value Means: softmax over a block sliding window and, in the same softmax, over state rows
// into which what leaves the window is appended or merged. KVM paper section 4; exactly: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attend.h"

namespace ovq {

// The update on CUDA keeps 24 bytes a token of the chunk in shared memory.
inline constexpr int64_t kMaxKvmCudaChunkLen = 2048;

enum class KvmBudget : uint8_t { kFixed, kPowerLaw, kSaturation };

// How many state rows there are, W = chunk_len and nb = window_chunks being what makes a window.
struct KvmLaw {
  KvmBudget budget;
  int64_t chunk_len, window_chunks;
  double factor, exponent;        // kPowerLaw: factor * position^exponent
  int64_t saturation_n;           // kSaturation: N position / (N + position)
  int64_t round_down, min_slots;  // of these two: to a multiple, then at least
  int64_t max_chunks;             // rows for at most so many chunks

  // After c whole chunks, without a session's cap: 0 for c < nb, else
  //   max(W, min(max(T(c W), min_slots), (c + 1 - nb) W, max_chunks W))
  // which never grows by more than W a chunk.
  int64_t SlotsAt(int64_t chunks) const;
  Growth AsGrowth(int64_t default_slot_cap) const;
};

struct KvmConfig {
  AttentionShape shape;
  KvmLaw law;
  int64_t default_slot_cap;  // of sessions that name none
  int sink_len;              // the first rows, into which nothing is merged
  int masked_dims;           // first channels of a key, set to 0 before it goes to a row
  bool gate_keys, gate_values, gate_first, gate_appends;
  bool head_temps;
  // A row's value keeps the length of the value that founded it; else lengths count merges.
  bool value_lengths;
  bool round_values;  // a state value to bfloat16 whatever the dtype
  DType dtype;        // of keys, values and their sums
  int layer = 0;      // only the random numbers of rounded sums depend on it

  constexpr bool gated() const { return gate_keys || gate_values; }
};

// What the state holds beside the window and what attention reads of the rows.
struct KvmParts {
  StatePlace gates;    // float, index: a token of the window; none if all gates are 1
  StatePlace lengths;  // float [64] of a block of rows
  // What keys and values are made from, laid out as they are.
  StatePlace key_sums, value_sums;
};
struct KvmWeights {
  const float* norm_weight;  // [head_dim]
  const float* norm_bias;    // [head_dim]
  const float* front_temps;  // [n_heads] of keys in the window
  const float* state_temps;  // [n_heads] of a row's key after its norm
};

// Rows of the state are the dictionary of `blocks`, window tokens, whose keys are kept times their
// temperature, the recent ones.
struct KvmArgs : AttentionArgs {
  const KvmConfig& config;
  KvmParts parts;
  KvmWeights weights;
  const float* gate_logits;  // [n_tokens, n_heads]; null: all gates are 1
};

// fixed: window keys [n_heads][blocks of the window][head_dim][64] and values, gates [n_heads][nb
// W] block: per head: lengths f32 [64] | keys [head_dim][64] | values [64][value_stride] | key sums
// | value sums, so that one
//        head's part of a block is one run of memory
struct KvmAttention : Attention {
  KvmAttention(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return config.gated() ? gate.bytes() : 0; }
  void Attend(const LayerArgs& args, const AttentionTensors& rows) const;
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange& tokens) const;

  KvmConfig config;
  Linear gate;
  Buffer norm_weight, norm_bias, front_temps, state_temps;  // in the device's memory

 private:
  AttentionBlocks Blocks(const LayerState& where) const;
  KvmParts Parts(const LayerState& where) const;
  StatePlace Fixed(const LayerState& where, int field) const;
  StatePlace Growing(const LayerState& where, int field) const;
};

void KvmAttentionRef(DeviceContext& context, const KvmArgs& args);
void KvmAttentionCpu(DeviceContext& context, const KvmArgs& args);
void KvmAttentionCuda(DeviceContext& context, const KvmArgs& args);

}  // namespace ovq
