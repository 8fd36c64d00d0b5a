// MesaNet: for each query, conjugate gradients solve (H_kk + diag(lambda)) u = q against the
// decayed
// sum H_kk of the keys' outer products; the output is H_kv^T u with H_kv, the decayed sum of k v^T.
// The
// equations: README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/mixer.h"
#include "kernels/mixers/recurrent/padded.h"
#include "kernels/mixers/recurrent/short_conv.h"

namespace ovq {

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
  const MesaConfig& config;
  const BatchSequences& seqs;
  StatePlace h_kk, h_kv;  // H_kk and H_kv, per head float [head_dim][stride]
  // [n_tokens, n_heads, head_dim]. q and k have unit length; they share rows of 2 width elements.
  const float *q, *k, *v;
  int64_t v_stride;
  const float *beta, *gamma;  // [n_tokens, n_heads]
  const float* lambda;        // [n_heads, stride], padded with zeros
  float* y;                   // [n_tokens, n_heads, head_dim], packed

  int64_t qk_stride() const { return 2 * config.width(); }
};

// The layer, for RecurrentMixer.
struct MesaNet {
  using Config = MesaConfig;
  explicit MesaNet(const Config& config);

  void Load(const MixerSpec& spec);
  size_t weight_bytes() const { return in.bytes() + out.bytes(); }
  void Forward(const LayerArgs& args, TensorView x, TensorView y) const;

  MesaConfig config;
  MixerState layout;
  DType compute = DType::kF32;
  Linear in;  // W_q, W_k, W_v, the gates beta and gamma, the output gate
  Linear out;
  ShortConvFilters conv;
  Buffer beta_bias, gamma_bias;  // [n_heads] float
  Buffer lambda;                 // [n_heads, stride] float
  Buffer norm_weight;            // [head_dim] float

 private:
  // Output of the recurrence, float [n_tokens, width]; advances the states. projected: `in`'s
  // output.
  float* Read(const LayerArgs& args, TensorView projected, ScratchScope& scope) const;
};

void MesaNetRef(DeviceContext& context, const MesaArgs& args);
void MesaNetCpu(DeviceContext& context, const MesaArgs& args);
void MesaNetCuda(DeviceContext& context, const MesaArgs& args);

}  // namespace ovq
