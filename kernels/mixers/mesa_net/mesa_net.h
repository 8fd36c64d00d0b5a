// MesaNet: for each query, conjugate gradients solve (H_kk + diag(lambda)) u = q against the
// decayed sum H_kk of the keys' outer products; the output is H_kv^T u with H_kv, the decayed sum
// of k v^T. The equations: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/recurrent/padded.h"
#include "kernels/mixers/recurrent/recurrent_mixer.h"

namespace ovq::kernels {

// Largest head_dim; the published kernels have the same bound.
inline constexpr int kMaxMesaHeadDim = 128;
// Part of the model, like the number of CG steps: it damps the steps once r.r has become small.
inline constexpr float kMesaCgEps = 1e-5f;

// Section "mesa_net" of config.json.
struct MesaConfig {
  int n_heads = 0;    // num_heads
  int head_dim = 0;   // of keys and values
  int conv_size = 4;  // 2 to 64
  bool conv_bias = false;
  bool output_gate = false;  // use_output_gate
  double lambda_lower_bound = 0.25;
  int cg_steps = 30;       // CG steps of every token: max_cg_step_training
  float norm_eps = 1e-5f;  // rms_norm_eps

  constexpr int64_t width() const { return int64_t{n_heads} * head_dim; }
  constexpr int64_t stride() const { return PaddedWidth(head_dim); }  // of rows of h_kk and h_kv
};
void ReadConfig(const FieldReaders& from, MesaConfig& config);

struct MesaArgs {
  MesaConfig config;
  StatePlace h_kk, h_kv;  // H_kk and H_kv, per head float [head_dim][stride]
  // [n_tokens, n_heads, head_dim], q and k of unit length; tokens qk_stride or v_stride apart.
  const float *q, *k, *v;
  int64_t qk_stride, v_stride;
  const float *beta, *gamma;  // [n_tokens, n_heads]
  const float* lambda;        // [n_heads, stride], padded with zeros
  float* y;                   // [n_tokens, n_heads, head_dim], packed
};

class MesaNet final : public RecurrentMixer {
 public:
  using Config = MesaConfig;
  MesaNet(const StateSpec&, const Config& config)
      : RecurrentMixer(Describe(config)), config_(config) {}

 private:
  static RecurrentLayer Describe(const Config& config);
  void LoadOwn(const MixerSpec& spec) override;
  void Advance(const LayerArgs& args, const RecurrentInputs& inputs) const override;

  const Config config_;
  Buffer lambda_;  // [n_heads, stride] float
};

void MesaNetCpu(DeviceContext& context, const BatchSequences& seqs, const MesaArgs& args);
void MesaNetCuda(DeviceContext& context, const BatchSequences& seqs, const MesaArgs& args);

}  // namespace ovq::kernels
