// Mamba-2: each head has a matrix state S that decays by an input-dependent dt and adds an outer
// product: S <- e^(rate dt) S + dt B x^T, y = S^T C + D x. Dao and Gu, "Transformers are SSMs",
// section 7, as in the published code; the equations: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/recurrent_mixer.h"

namespace ovq {

struct Mamba2Config {
  int n_heads, head_dim;     // of x, z and y
  int n_groups, state_size;  // of B and C
  int conv_size;
  bool conv_bias, bias;
  bool norm, norm_before_gate;
  int norm_groups;        // groups of equal width of the RMS norm
  bool skip_per_channel;  // D has one number a channel, else one a head
  float min_dt, max_dt;
  float norm_eps;

  int64_t width() const { return int64_t{n_heads} * head_dim; }
  int64_t group_width() const { return int64_t{n_groups} * state_size; }  // of B or C
  int64_t conv_width() const { return width() + 2 * group_width(); }
};

struct Mamba2 : Recurrence {
  Mamba2(const StateSpec& spec, AttrReader& model, AttrReader& section);

  RecurrentLayer Describe() const;
  void Load(const MixerSpec& spec);
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const;

  Mamba2Config config;
  Buffer skip;  // D, float [width]
};

}  // namespace ovq
