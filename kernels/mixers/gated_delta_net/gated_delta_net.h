// Gated DeltaNet: each head has a matrix state S that decays and is corrected towards S^T k = v:
// S <- alpha S, S <- S + k (beta (v - S^T k))^T, y = S^T q. Yang et al., "Gated Delta Networks",
// eq. 10, as in flash-linear-attention; the equations: README.md. With a decay for every channel of
// the keys, S <- diag(alpha) S, it is Kimi Delta Attention ("Kimi Linear", eq. 1).
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/recurrent_mixer.h"

namespace ovq::kernels {

// Section "gdn" of config.json.
struct GatedDeltaNetConfig {
  int n_heads = 0;         // heads of q and k: num_heads
  int n_v_heads = 0;       // heads of v and S, a multiple of n_heads, 0: n_heads; num_v_heads
  int head_dim = 0;        // of q and k, at most 512
  int value_head_dim = 0;  // at most 4096
  bool convolves = true;   // use_short_conv
  int conv_size = 0;       // 2 to 64, or 1 for silu without a convolution
  bool conv_bias = false;
  enum class GateActivation : uint8_t { kSilu, kSigmoid };
  bool output_gate = true;  // use_gate
  GateActivation gate_activation = GateActivation::kSilu;
  int gate_rank = 0;       // of the projection to z; 0: a full one
  bool gate_bias = false;  // with gate_rank
  int decay_rank = 0;      // of the projection to a decay for every channel; 0: one a head
  // With decay_rank: ln alpha = decay_lower_bound sigmoid(exp(A_log) (f + dt_bias)); 0: as usual.
  float decay_lower_bound = 0;
  // Permits negative eigenvalues of the state's transition: allow_neg_eigval.
  bool negative_eigenvalues = false;
  float norm_eps = 1e-5f;  // rms_norm_eps

  int64_t key_width() const { return int64_t{n_heads} * head_dim; }
  int64_t value_width() const { return int64_t{n_v_heads} * value_head_dim; }
  // Decays of a head.
  int n_decays() const { return decay_rank > 0 ? head_dim : 1; }
  int64_t conv_width() const { return 2 * key_width() + value_width(); }
};
void ReadConfig(const FieldReaders& from, GatedDeltaNetConfig& config);

class GatedDeltaNet final : public RecurrentMixer {
 public:
  using Config = GatedDeltaNetConfig;
  GatedDeltaNet(const StateSpec&, const Config& config)
      : RecurrentMixer(Describe(config)), config_(config) {}

 private:
  static RecurrentLayer Describe(const Config& config);
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const override;

  const Config config_;
};

}  // namespace ovq::kernels
