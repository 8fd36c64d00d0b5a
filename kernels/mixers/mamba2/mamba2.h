// Mamba-2: each head has a matrix state S that decays by an input-dependent dt and adds an outer
// product: S <- e^(rate dt) S + dt B x^T, y = S^T C + D x. Dao and Gu, "Transformers are SSMs",
// section 7, as in the published code; the equations: README.md.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/mixers/recurrent/recurrent_mixer.h"

namespace ovq::kernels {

// Section "mamba2" of config.json.
struct Mamba2Config {
  int n_heads = 0, head_dim = 64;       // of x, z and y: num_heads, head_dim
  int n_groups = 1, state_size = 128;   // of B and C; n_groups divides n_heads
  double expand = 0;                    // int(expand d_model) must be the heads' width; 0: not told
  int conv_size = 4;                    // 2 to 64: conv_kernel
  bool conv_bias = true, bias = false;  // use_conv_bias, use_bias
  bool norm = true, norm_before_gate = false;  // rmsnorm, norm_before_gate
  int norm_groups = 0;                         // groups of equal width of the RMS norm; 0: n_groups
  bool skip_per_channel = false;  // D has one number a channel, else one a head: D_has_hdim
  float min_dt = 0, max_dt = std::numeric_limits<float>::infinity();  // dt_limit
  float norm_eps = 1e-5f;                                             // rms_norm_eps

  int64_t width() const { return int64_t{n_heads} * head_dim; }
  int64_t group_width() const { return int64_t{n_groups} * state_size; }  // of B or C
  int64_t conv_width() const { return width() + 2 * group_width(); }
};
void ReadConfig(const FieldReaders& from, Mamba2Config& config);

class Mamba2 final : public RecurrentMixer {
 public:
  using Config = Mamba2Config;
  Mamba2(const StateSpec&, const Config& config)
      : RecurrentMixer(Describe(config)), config_(config) {}

 private:
  static RecurrentLayer Describe(const Config& config);
  void LoadOwn(const MixerSpec& spec) override;
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const override;

  const Config config_;
  Buffer skip_;  // D, float [width]
};

}  // namespace ovq::kernels
