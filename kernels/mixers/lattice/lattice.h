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

// What a token's step descends: |phi(S) k - v|^2, |phi(S)^T v - k|^2, -<phi(S)^T v, k>, eq. 6,
// 9, 11.
enum class LatticeObjective : uint8_t { kDecoding, kEncoding, kSimilarity };

struct LatticeConfig {
  int n_heads = 0;
  int n_slots = 0;
  int value_head_dim = 0;
  int conv_size = 0;
  bool conv_bias = false;
  LatticeObjective objective = LatticeObjective::kDecoding;
  bool normalized_projection = true;  // eq. 14; else slots keep their length
  bool use_forget_gate = true;
  bool thresholds = false;  // the gate is a soft threshold (eq. 18), not a decay (eq. 16)
  float norm_eps = 0;

  constexpr int64_t key_width() const { return int64_t{n_heads} * n_slots; }
  constexpr int64_t value_width() const { return int64_t{n_heads} * value_head_dim; }
  constexpr int64_t stride() const { return PaddedWidth(value_head_dim); }  // of a slot
  constexpr bool decays() const { return use_forget_gate && !thresholds; }
};

// [n_rows, n_heads]; null where the config has none.
struct LatticeGates {
  const float* write;       // gamma
  const float* keep;        // mu
  const float* decay_step;  // with rate [n_heads], below 0: rho = -rate decay_step
  const float* rate;

  constexpr float KeepOf(int64_t gate) const { return keep == nullptr ? 1.0f : keep[gate]; }
  // tau = gamma rho
  constexpr float ThresholdOf(int64_t gate, int head) const {
    return decay_step == nullptr ? 0.0f : write[gate] * (-rate[head] * decay_step[gate]);
  }
};

struct LatticeStep {
  const LatticeConfig& config;
  const StepSeqs& seqs;
  StatePlace slots;    // of a head, float [n_slots][stride]
  const float *q, *k;  // [n_rows, n_heads, n_slots] of unit length, in rows of 2 key_width
  const float* v;      // [n_rows, n_heads, value_head_dim]
  int64_t v_stride;
  LatticeGates gates;
  float* y;  // [n_rows, n_heads, value_head_dim]

  int64_t qk_stride() const { return 2 * config.key_width(); }
};

// As RecurrentMixer has it. The slots of a state by the config alone begin as zeros: what they
// begin with is among the weights.
struct Lattice {
  Lattice(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return in.bytes() + out.bytes(); }
  void Forward(const LayerStep& step, TensorView x, TensorView y) const;

  LatticeConfig config;
  MixerState layout;
  DType compute = DType::kF32;
  Linear in;  // u, v, the output gate, gamma, and mu where there is a forget gate
  Linear out;
  ShortConvFilters conv;
  Buffer decay_bias, rate;  // [n_heads] float
  Buffer norm_weight;       // [value_head_dim] float

 private:
  LatticeGates Gates(const LayerStep& step, TensorView projected, ScratchScope& scope) const;
  // [n_rows, value_width] what each row reads of the slots, which it advances. projected: of `in`.
  float* Read(const LayerStep& step, TensorView projected, ScratchScope& scope) const;
};

void LatticeRef(DeviceContext& context, const LatticeStep& step);
void LatticeCpu(DeviceContext& context, const LatticeStep& step);
void LatticeCuda(DeviceContext& context, const LatticeStep& step);

}  // namespace ovq
