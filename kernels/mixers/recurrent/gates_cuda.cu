// Gates of recurrent mixers on CUDA, for token t and head h; the norm for each group of a token:
// Decay        dt[t,h] = clamp(softplus(x[t,h] + bias[h])), decay[t,h] = e^(rate[h] dt[t,h]), or
//              decay[t,h] = e^(lower_bound / (1 + e^(rate[h] (x[t,h] + bias[h]))))
// Sigmoid      y[t,h] = scale / (1 + e^-(x[t,h] + bias[h]))
// NormAndGate  y = x / sqrt(mean(x^2) + eps) * weight * g(z), or g before the norm; x, y [n_tokens,
//              n_groups, width]
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/recurrent/gates.h"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxNormThreads = 256;

__device__ inline int64_t Thread() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

// ln(1 + e^z), computed from e^-|z| alone, so it cannot overflow.
__device__ inline float Softplus(float z) { return fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))); }

// Launch: one thread for each head of a token, in both gate kernels.
__global__ void __launch_bounds__(kThreads) DecayKernel(const __grid_constant__ DecayGate gate) {
  const int64_t at = Thread(), token = at / gate.n_heads, head = at % gate.n_heads;
  if (token >= gate.n_tokens) return;
  const float z = gate.x[token * gate.x_stride + head] + gate.bias[head];
  if (gate.lower_bound < 0) {
    gate.decay[at] = expf(gate.lower_bound / (1.0f + expf(gate.rate[head] * z)));
    return;
  }
  const float dt = fminf(fmaxf(Softplus(z), gate.min_dt), gate.max_dt);
  gate.decay[at] = expf(gate.rate[head] * dt);
  gate.dt[at] = dt;
}

__global__ void __launch_bounds__(kThreads)
    SigmoidKernel(const __grid_constant__ SigmoidGate gate) {
  const int64_t at = Thread(), token = at / gate.n_heads, head = at % gate.n_heads;
  if (token >= gate.n_tokens) return;
  const float bias = gate.bias == nullptr ? 0.0f : gate.bias[head];
  gate.y[at] = gate.scale * Sigmoid(gate.x[token * gate.x_stride + head] + bias);
}

__device__ float Gate(GateKind kind, float z) {
  if (kind == GateKind::kSilu) return Silu(z);
  if (kind == GateKind::kSigmoid) return Sigmoid(z);
  // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
  return z * Sigmoid(2 * 0.7978845608028654f * fmaf(0.044715f * z, z * z, z));
}

// Launch: one block for each group of a token. A thread reads back only what it wrote itself.
__global__ void __launch_bounds__(kMaxNormThreads)
    NormAndGateKernel(const __grid_constant__ GatedNorm norm) {
  const int64_t token = blockIdx.x / norm.n_groups, n = norm.width, at = int64_t{blockIdx.x} * n;
  const int64_t in_token = blockIdx.x % norm.n_groups * n;
  const float* z =
      norm.gate == GateKind::kNone ? nullptr : norm.z + token * norm.z_stride + in_token;
  float* x = norm.x + at;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    if (norm.gates_input && z != nullptr) x[i] *= Gate(norm.gate, z[i]);
    squares = fmaf(x[i], x[i], squares);
  }
  const float total = BlockSum(squares, DynamicShared<float>(0));
  const float factor = 1.0f / sqrtf(total / static_cast<float>(n) + norm.eps);
  const float* weight = norm.weight;
  if (weight != nullptr && !norm.shares_weight) weight += in_token;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float y = x[i];
    if (weight != nullptr) y *= factor * weight[i];
    if (!norm.gates_input && z != nullptr) y *= Gate(norm.gate, z[i]);
    if (norm.y_dtype == DType::kF32) {
      static_cast<float*>(norm.y)[at + i] = y;
    } else {
      static_cast<uint16_t*>(norm.y)[at + i] = static_cast<uint16_t>(PackBF16(y, 0.0f));
    }
  }
}

// Launches one thread for each of n numbers.
template <class T>
void LaunchGate(DeviceContext& context, void (*kernel)(T), int64_t n, const T& gate) {
  if (n == 0) return;
  Launch(context, kernel, dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, gate);
}

}  // namespace

void Decay(DeviceContext& context, const DecayGate& gate) {
  LaunchGate(context, DecayKernel, gate.n_tokens * gate.n_heads, gate);
}

void Sigmoid(DeviceContext& context, const SigmoidGate& gate) {
  LaunchGate(context, SigmoidKernel, gate.n_tokens * gate.n_heads, gate);
}

void NormAndGate(DeviceContext& context, const GatedNorm& norm) {
  if (norm.n_tokens == 0) return;
  Launch(context, NormAndGateKernel, dim3(static_cast<unsigned>(norm.n_tokens * norm.n_groups)),
         dim3(RowThreads(norm.width, kMaxNormThreads)), kWarp * sizeof(float), norm);
}

}  // namespace ovq::kernels::cuda
