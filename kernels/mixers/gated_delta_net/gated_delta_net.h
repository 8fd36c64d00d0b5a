// Gated DeltaNet: each head has a matrix state S that decays and is corrected towards S^T k = v:
// S <- alpha S, S <- S + k (beta (v - S^T k))^T, y = S^T q. Yang et al., "Gated Delta Networks",
// eq.
// 10, as in flash-linear-attention; the equations: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/short_conv.h"
#include "kernels/ops/ops.h"

namespace ovq {

// Section "gdn" of config.json.
struct GatedDeltaNetConfig {
  int n_heads = 0;         // heads of q and k: num_heads
  int n_v_heads = 0;       // heads of v and S, a multiple of n_heads, 0: n_heads; num_v_heads
  int head_dim = 0;        // of q and k, at most 512
  int value_head_dim = 0;  // at most 4096
  bool convolves = true;   // use_short_conv
  int conv_size = 0;       // 2 to 64, or 1 for silu without a convolution
  bool conv_bias = false;
  bool has_gate = true;  // use_gate
  // Permits negative eigenvalues of the state's transition: allow_neg_eigval.
  bool negative_eigenvalues = false;
  float norm_eps = 1e-5f;  // rms_norm_eps

  int64_t qk_width() const { return int64_t{n_heads} * head_dim; }
  int64_t v_width() const { return int64_t{n_v_heads} * value_head_dim; }
  int64_t conv_width() const { return 2 * qk_width() + v_width(); }
};
void ReadConfig(const FieldReaders& from, GatedDeltaNetConfig& config);

// fixed: matrices (matrix_state.h), then the newest inputs of the convolution: q, k and v side by
// side.
struct GatedDeltaNet {
  using Config = GatedDeltaNetConfig;
  explicit GatedDeltaNet(const Config& config);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return in.bytes() + out.bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const;

  GatedDeltaNetConfig config;
  MixerState layout;
  DType compute = DType::kF32;
  Linear in;  // output rows: q, k, v, a, b and, with a gate, g
  Linear out;
  ShortConvFilters conv;
  // float in device memory: query_scale [n_heads], all head_dim^-0.5; rate and dt_bias [n_v_heads];
  // norm_weight [value_head_dim].
  Buffer query_scale, rate, dt_bias, norm_weight;

 private:
  // Pointers to the inputs of the batch's first token.
  struct TokenInputs {
    float *q, *k, *v;  // tokens conv_width apart
    float *a, *b, *g;  // tokens in.out() apart
    int64_t n_tokens;
  };
  TokenInputs Project(const LayerArgs& args, TensorView x, ScratchScope& scope) const;
  // Output of the recurrence, float [n_tokens, n_v_heads, value_head_dim].
  float* ReadStates(const LayerArgs& args, const TokenInputs& rows, ScratchScope& scope) const;
};

}  // namespace ovq
