// Mamba-2: a matrix for each head that decays by a dt the input chooses and takes in an outer
// product. Dao and Gu, "Transformers are SSMs", section 7, as in the published code; exactly:
// README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/ops.h"

namespace ovq {

struct Mamba2Config {
  int n_heads, head_dim;     // of x, z and y
  int n_groups, state_size;  // of B and C
  int conv_size;
  bool conv_bias, bias;
  bool norm, norm_before_gate;
  int norm_groups;        // of as many channels each
  bool skip_per_channel;  // D of every channel, not of every head
  float min_dt, max_dt;
  float norm_eps;

  int64_t width() const { return int64_t{n_heads} * head_dim; }
  int64_t group_width() const { return int64_t{n_groups} * state_size; }  // of B or C
  int64_t conv_width() const { return width() + 2 * group_width(); }
};

// fixed: matrices (matrix_state.h) with a state's place as key and a head's channel as value, then
// the newest inputs of the convolution, x, B and C side by side.
struct Mamba2 {
  Mamba2(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return in.bytes() + out.bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const;

  Mamba2Config config;
  MixerState layout;
  DType compute = DType::kF32;
  Linear in;  // rows z, x, B, C, dt
  Linear out;
  ShortConvFilters conv;
  // float in the device's memory: [in.out()] and [d_model] or nothing, [n_heads] twice, [width]
  // twice, the second or nothing
  Buffer in_bias, out_bias, rate, dt_bias, skip, norm_weight;

 private:
  // y [n_tokens, width] of all heads; projected [n_tokens, in.out()]
  float* ReadStates(const LayerArgs& args, TensorView projected, ScratchScope& scope) const;
};

}  // namespace ovq
