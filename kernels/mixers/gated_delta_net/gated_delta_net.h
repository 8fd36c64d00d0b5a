// Gated DeltaNet: each head has a matrix state S that decays and is corrected towards S^T k = v:
// S <- alpha S, S <- S + k (beta (v - S^T k))^T, y = S^T q. Yang et al., "Gated Delta Networks",
// eq. 10, as in flash-linear-attention; the equations: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/recurrent_mixer.h"

namespace ovq {

struct GatedDeltaNetConfig {
  int n_heads;    // heads of q and k
  int n_v_heads;  // heads of v and S, a multiple of n_heads
  int head_dim;   // of q and k
  int value_head_dim;
  int conv_size;  // 1: silu without a convolution
  bool conv_bias;
  bool output_gate;
  float beta_scale;  // 2 permits negative eigenvalues of the state's transition
  float norm_eps;

  int64_t key_width() const { return int64_t{n_heads} * head_dim; }
  int64_t value_width() const { return int64_t{n_v_heads} * value_head_dim; }
  int64_t conv_width() const { return 2 * key_width() + value_width(); }
};

struct GatedDeltaNet : Recurrence {
  GatedDeltaNet(const StateSpec& spec, AttrReader& model, AttrReader& section);

  RecurrentLayer Describe() const;
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const;

  GatedDeltaNetConfig config;
};

}  // namespace ovq
