// What recurrent mixers have around their states: gates of a head, one number a token, and the
// gated norm of what a head reads.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/mixers/mixer.h"

namespace ovq {

// How much of its state a head keeps, in float32 with log1p: of every token and head
//   dt  = min(max(softplus(x + bias), min_dt), max_dt)        softplus(z) = ln(1 + e^z)
//   decay = e^(rate dt)
struct DecayGate {
  const float* x;  // [n_tokens, n_heads], tokens x_stride apart
  int64_t x_stride;
  int64_t n_tokens;
  int n_heads;
  const float* bias;    // [n_heads]
  const float* rate;    // [n_heads], none above 0 (LoadDecayRates)
  float* decay;         // [n_tokens, n_heads], packed
  float* dt = nullptr;  // likewise; null: not wanted
  float min_dt = 0;
  float max_dt = std::numeric_limits<float>::infinity();
};
void Decay(DeviceContext& context, const DecayGate& gate);
// rate = -exp(A_log), float [n_heads] in the device's memory, from the tensor A_log [n_heads].
Buffer LoadDecayRates(const MixerSpec& spec, std::string_view leaf, int n_heads);

// y = scale / (1 + e^-(x + bias))
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

// Of every group of a token, with g(z) = z / (1 + e^-z), or z (1 + tanh(0.7978845608028654 (z +
// 0.044715 z^3))) / 2, or 1:
//   y = rms(x) g(z), or rms(x g(z)) with gates_input;  rms(r) = r / sqrt(mean(r^2) + eps) * weight
enum class GateKind : uint8_t { kNone, kSilu, kGeluTanh };
struct GatedNorm {
  float* x;  // [n_tokens, n_groups, width], packed; gates_input leaves x g(z) there
  int64_t n_tokens;
  int n_groups;
  int64_t width;
  // weight [width] shared by the groups, or [n_groups, width]; null: no norm, y = x g(z)
  const float* weight;
  bool shares_weight = true;
  float eps = 0;
  GateKind gate = GateKind::kNone;
  const float* z = nullptr;  // as x with tokens z_stride apart
  int64_t z_stride = 0;
  bool gates_input = false;
  void* y;        // as x, not its memory
  DType y_dtype;  // kF32 or kBF16
};
void NormAndGate(DeviceContext& context, const GatedNorm& norm);

}  // namespace ovq
