// Gates of recurrent mixers: decay and sigmoid gates, one number a token and head (or a token, head
// and channel), and the gated RMS norm of their outputs.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/common/dispatch.h"
#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

// Decay of head h (or of channel h of all heads) at token t, in float32 with log1p:
//   dt[t,h]    = min(max(softplus(x[t,h] + bias[h]), min_dt), max_dt)     softplus(z) = ln(1 + e^z)
//   decay[t,h] = e^(rate[h] dt[t,h])
// or, with a lower bound of its logarithm,
//   decay[t,h] = e^(lower_bound / (1 + e^(rate[h] (x[t,h] + bias[h]))))
struct DecayGate {
  const float* x;  // [n_tokens, n_heads], tokens x_stride apart
  int64_t x_stride;
  int64_t n_tokens;
  int n_heads;
  const float* bias;  // [n_heads]
  const float* rate;  // [n_heads], none above 0 (see LoadDecayRates)
  float *decay, *dt;  // [n_tokens, n_heads], packed; with lower_bound dt is not written
  float min_dt = 0;
  float max_dt = std::numeric_limits<float>::infinity();
  float lower_bound = 0;  // at most 0; 0: none
};
void Decay(DeviceContext& context, const DecayGate& gate);
// Loads rate = -exp(A_log) from the tensor A_log [n_heads], each head's `channels` times: float
// [n_heads, channels] in device memory.
Buffer LoadDecayRates(const MixerSpec& spec, std::string_view leaf, int n_heads, int channels = 1);

// y[t,h] = scale / (1 + e^-(x[t,h] + bias[h]))
struct SigmoidGate {
  const float* x;  // [n_tokens, n_heads], tokens x_stride apart
  int64_t x_stride;
  int64_t n_tokens;
  int n_heads;
  float* y;                     // [n_tokens, n_heads], packed
  const float* bias = nullptr;  // [n_heads]; null: 0
  float scale = 1;
};
void Sigmoid(DeviceContext& context, const SigmoidGate& gate);

// Gated RMS norm of each group of `width` channels of a token. gates_input: the gate comes before
// the norm.
//   y = rms(x) g(z), or rms(x g(z)) with gates_input;  rms(r) = r / sqrt(mean(r^2) + eps) * weight
//   g(z) = 1 (kNone), z / (1 + e^-z) (kSilu), 1 / (1 + e^-z) (kSigmoid), or, for kGeluTanh,
//          z (1 + tanh(0.7978845608028654 (z + 0.044715 z^3))) / 2
enum class GateKind : uint8_t { kNone, kSilu, kSigmoid, kGeluTanh };
struct GatedNorm {
  float* x;  // [n_tokens, n_groups, width], packed; overwritten by x g(z) if gates_input
  int64_t n_tokens;
  int n_groups;
  int64_t width;
  // weight [width] shared by the groups, or [n_groups, width]; null: no norm, y = x g(z)
  const float* weight;
  bool shares_weight = true;
  float eps = 0;
  GateKind gate = GateKind::kNone;
  const float* z = nullptr;  // [n_tokens, n_groups, width], tokens z_stride apart
  int64_t z_stride = 0;
  bool gates_input = false;
  void* y;        // [n_tokens, n_groups, width], packed; must not alias x
  DType y_dtype;  // kF32 or kBF16
};
void NormAndGate(DeviceContext& context, const GatedNorm& norm);

OVQ_ON_EVERY_DEVICE(Decay)
OVQ_ON_EVERY_DEVICE(Sigmoid)
OVQ_ON_EVERY_DEVICE(NormAndGate)

}  // namespace ovq::kernels
