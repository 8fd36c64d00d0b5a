// Gated DeltaNet: a matrix for each head that decays and whose answer to a key moves towards the
// key's value. Yang et al., "Gated Delta Networks", eq. 10, as in flash-linear-attention; exactly:
// README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/ops.h"

namespace ovq {

struct GatedDeltaNetConfig {
  int n_heads;    // of queries and keys
  int n_v_heads;  // of values and states, a multiple
  int head_dim;   // of queries and keys
  int value_head_dim;
  int conv_size;  // 1: silu alone
  bool conv_bias;
  bool has_gate;
  float beta_scale;  // 2 lets a state's eigenvalues be negative
  float norm_eps;

  int64_t qk_width() const { return int64_t{n_heads} * head_dim; }
  int64_t v_width() const { return int64_t{n_v_heads} * value_head_dim; }
  int64_t conv_width() const { return 2 * qk_width() + v_width(); }
};

// fixed: matrices (matrix_state.h), then the newest inputs of the convolution, q, k and v side by
// side.
struct GatedDeltaNet {
  GatedDeltaNet(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return in.bytes() + out.bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const;

  GatedDeltaNetConfig config;
  MixerState layout;
  DType compute = DType::kF32;
  Linear in;  // rows q, k, v, a, b and, with a gate, g
  Linear out;
  ShortConvFilters conv;
  // float in the device's memory: [n_heads] head_dim^-0.5, [n_v_heads] twice, [value_head_dim]
  Buffer query_scale, rate, dt_bias, norm_weight;

 private:
  // Where the batch's tokens lie, each input in its place of a token.
  struct TokenInputs {
    float *q, *k, *v;  // n_tokens, conv_width apart
    float *a, *b, *g;  // likewise, in.out() apart
    int64_t n_tokens;
  };
  TokenInputs Project(const LayerArgs& args, TensorView x, ScratchScope& scope) const;
  // float [n_tokens, n_v_heads, value_head_dim]
  float* ReadStates(const LayerArgs& args, const TokenInputs& rows, ScratchScope& scope) const;
};

}  // namespace ovq
