// Lattice: slots of unit length, each of which takes up what of a token is orthogonal to it. A
// recurrence that is not linear in its state. Exactly: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/mixer.h"
#include "kernels/mixers/recurrent/padded.h"
#include "kernels/mixers/recurrent/short_conv.h"

namespace ovq {

inline constexpr int64_t kMaxLatticeSlots = 4096;
inline constexpr int64_t kMaxLatticeValueDim = 256;
// Elements of a head's slots that CUDA keeps in shared memory: 192 KiB.
inline constexpr int64_t kMaxLatticeCudaElements = 48 * 1024;

// What a token's update descends: |phi(S) k - v|^2, |phi(S)^T v - k|^2, -<phi(S)^T v, k>, eq. 6,
// 9, 11.
enum class LatticeObjective : uint8_t { kDecoding, kEncoding, kSimilarity };

struct LatticeConfig {
  int n_heads = 0;
  int n_slots = 0;
  int value_head_dim = 0;
  int conv_size = 0;
  bool conv_bias = false;
  LatticeObjective objective = LatticeObjective::kDecoding;
  bool normalized_projection = true;  // eq. 14; else slots retain their length
  bool use_forget_gate = true;
  bool thresholds = false;  // the gate is a soft threshold (eq. 18), not a decay (eq. 16)
  float norm_eps = 0;

  constexpr int64_t key_width() const { return int64_t{n_heads} * n_slots; }
  constexpr int64_t value_width() const { return int64_t{n_heads} * value_head_dim; }
  constexpr int64_t stride() const { return PaddedWidth(value_head_dim); }  // of a slot
  constexpr bool decays() const { return use_forget_gate && !thresholds; }
};

// [n_tokens, n_heads]; null where the config has none.
struct LatticeGates {
  const float* gamma;
  const float* mu;
  const float* dt;  // with rate [n_heads], below 0: rho = -rate dt
  const float* rate;

  constexpr float Mu(int64_t gate) const { return mu == nullptr ? 1.0f : mu[gate]; }
  // tau = gamma rho
  constexpr float Tau(int64_t gate, int head) const {
    return dt == nullptr ? 0.0f : gamma[gate] * (-rate[head] * dt[gate]);
  }
};

struct LatticeArgs {
  const LatticeConfig& config;
  const BatchSequences& seqs;
  StatePlace slots;    // of a head, float [n_slots][stride]
  const float *q, *k;  // [n_tokens, n_heads, n_slots] of unit length, in rows of 2 key_width
  const float* v;      // [n_tokens, n_heads, value_head_dim]
  int64_t v_stride;
  LatticeGates gates;
  float* y;  // [n_tokens, n_heads, value_head_dim]

  int64_t qk_stride() const { return 2 * config.key_width(); }
};

// As RecurrentMixer has it. The slots of a state by the config alone begin as zeros: what they
// begin with is among the weights.
struct Lattice {
  Lattice(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return in.bytes() + out.bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const;

  LatticeConfig config;
  MixerState layout;
  DType compute = DType::kF32;
  Linear in;  // u, v, the output gate, gamma, and mu where there is a forget gate
  Linear out;
  ShortConvFilters conv;
  Buffer dt_bias, rate;  // [n_heads] float
  Buffer norm_weight;    // [value_head_dim] float

 private:
  LatticeGates Gates(const LayerArgs& args, TensorView projected, ScratchScope& scope) const;
  // [n_tokens, value_width] what each row reads of the slots, which it advances. projected: of
  // `in`.
  float* Read(const LayerArgs& args, TensorView projected, ScratchScope& scope) const;
};

void LatticeRef(DeviceContext& context, const LatticeArgs& args);
void LatticeCpu(DeviceContext& context, const LatticeArgs& args);
void LatticeCuda(DeviceContext& context, const LatticeArgs& args);

}  // namespace ovq
