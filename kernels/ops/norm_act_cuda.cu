// RmsNorm    y[i] = r / sqrt(mean(r^2) + eps) * weight (+ bias), r = x[rows[i]]; x [n, d]
// LayerNorm  y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias, r = x[rows[i]]
// SwiGlu     y = gate / (1 + e^-gate) * up; gate_up [n, 2f] = [gate | up], y [n, f]
// SquaredRelu y = max(x, 0)^2;  AddScaled x = a x + b y;  AddBias x = scale (x + bias)
// SoftCap    x = cap tanh(x / cap)
// MixTowards x += (target - x) share, share = 1 / (1 + e^-(gate + bias)) or one number
// GateBySigmoid x = x / (1 + e^-gate);  Copy y = x
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x), NaN unless all are finite; x [n, m],
// out [n]
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kMaxNormThreads = 256;
constexpr int kMaxSumThreads = 1024;
constexpr int kActThreads = 256;

struct NormTask {
  const float* x;
  const float *weight, *bias;  // [n]; RmsNorm: bias may be null
  const int32_t* rows;         // null: every row of x
  Activations y;
  int64_t n;
  float eps;
  bool aligned;
};

// One thread block per row. Thread t sums the squares of elements 4t .. 4t + 3, then 4 (t +
// threads) and so on, in four chains.
__global__ void __launch_bounds__(kMaxNormThreads) RmsNormKernel(const NormTask task) {
  const int64_t row = blockIdx.x, n = task.n;
  const bool aligned = task.aligned;
  const float* in = task.x + (task.rows == nullptr ? row : task.rows[row]) * n;
  const int64_t first = int64_t{threadIdx.x} * 4, stride = int64_t{blockDim.x} * 4;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, aligned, 0);
    sum.x = fmaf(v.x, v.x, sum.x);
    sum.y = fmaf(v.y, v.y, sum.y);
    sum.z = fmaf(v.z, v.z, sum.z);
    sum.w = fmaf(v.w, v.w, sum.w);
  }
  const float total = BlockSum((sum.x + sum.y) + (sum.z + sum.w), DynamicShared<float>(0));
  const float factor = 1.0f / sqrtf(total / static_cast<float>(n) + task.eps);
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, aligned, 0);
    const float4 w = Load4(task.weight, i, n, aligned, 0);
    const float4 b =
        task.bias == nullptr ? make_float4(0, 0, 0, 0) : Load4(task.bias, i, n, aligned, 0);
    Store4(task.y, row, i, n, aligned,
           make_float4(v.x * factor * w.x + b.x, v.y * factor * w.y + b.y, v.z * factor * w.z + b.z,
                       v.w * factor * w.w + b.w));
  }
}

// One thread block per row; sums as in RmsNormKernel, element by element. y may be x: a thread
// writes only elements that it alone has read.
__global__ void __launch_bounds__(kMaxNormThreads) LayerNormKernel(const NormTask task) {
  const int64_t row = blockIdx.x, n = task.n;
  const float* in = task.x + (task.rows == nullptr ? row : task.rows[row]) * n;
  const int64_t first = int64_t{threadIdx.x} * 4, stride = int64_t{blockDim.x} * 4;
  const SharedPtr<float> partial = DynamicShared<float>(0);
  float sum = 0;
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, false, 0);
    sum += (v.x + v.y) + (v.z + v.w);
  }
  const float mean = BlockSum(sum, partial) / static_cast<float>(n);
  float squares = 0;
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, false, mean);
    const float4 c = make_float4(v.x - mean, v.y - mean, v.z - mean, v.w - mean);
    squares += (c.x * c.x + c.y * c.y) + (c.z * c.z + c.w * c.w);
  }
  const float variance = BlockSum(squares, partial + kWarp) / static_cast<float>(n);
  const float factor = 1.0f / sqrtf(variance + task.eps);
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, false, 0);
    const float4 w = Load4(task.weight, i, n, false, 0), b = Load4(task.bias, i, n, false, 0);
    Store4(
        task.y, row, i, n, false,
        make_float4(fmaf((v.x - mean) * factor, w.x, b.x), fmaf((v.y - mean) * factor, w.y, b.y),
                    fmaf((v.z - mean) * factor, w.z, b.z), fmaf((v.w - mean) * factor, w.w, b.w)));
  }
}

template <class Kernel>
void LaunchNorm(DeviceContext& context, Kernel kernel, TensorView x, const NormWeights& weights,
                TensorView y, std::span<const int32_t> rows) {
  const int64_t n = x.shape[1], n_rows = y.shape[0];
  if (n_rows == 0) return;
  const bool aligned =
      Aligned(x.data, n, sizeof(float)) && Aligned(weights.weight.data, n, sizeof(float)) &&
      Aligned(weights.bias.data, n, sizeof(float)) && Aligned(y.data, n, DTypeBytes(y.dtype));
  Launch(context, kernel, dim3(static_cast<unsigned>(n_rows)), dim3(RowThreads(n, kMaxNormThreads)),
         2 * kWarp * sizeof(float),
         NormTask{.x = x.as<float>(),
                  .weight = weights.weight.as<float>(),
                  .bias = weights.bias.as<float>(),
                  .rows = rows.empty() ? nullptr : rows.data(),
                  .y = ToActivations(y),
                  .n = n,
                  .eps = weights.eps,
                  .aligned = aligned});
}

// The first of the four consecutive elements of a row that belong to this thread.
__device__ inline int64_t ElementOfThread() {
  return (int64_t{blockIdx.y} * kActThreads + threadIdx.x) * 4;
}

__global__ void __launch_bounds__(kActThreads)
    SquaredReluKernel(const float* x, int64_t n, const Activations y) {
  const int64_t row = blockIdx.x, i = ElementOfThread();
  if (i >= n) return;
  const float4 v = Load4(x + row * n, i, n, false, 0);
  const float4 r = make_float4(fmaxf(v.x, 0), fmaxf(v.y, 0), fmaxf(v.z, 0), fmaxf(v.w, 0));
  Store4(y, row, i, n, false, make_float4(r.x * r.x, r.y * r.y, r.z * r.z, r.w * r.w));
}

__global__ void __launch_bounds__(kActThreads)
    AddScaledKernel(float* x, float a, const float* y, float b, int64_t n) {
  const int64_t at = blockIdx.x * n, i = ElementOfThread();
  for (int64_t j = i; j < i + 4 && j < n; ++j) {
    const float scaled = y[at + j] * b;
    x[at + j] = a == 0 ? scaled : fmaf(x[at + j], a, scaled);
  }
}

__global__ void __launch_bounds__(kActThreads)
    AddBiasKernel(float* x, const float* bias, float scale, int64_t n) {
  const int64_t at = blockIdx.x * n, i = ElementOfThread();
  for (int64_t j = i; j < i + 4 && j < n; ++j) {
    x[at + j] = (x[at + j] + (bias == nullptr ? 0.0f : bias[j])) * scale;
  }
}

__global__ void __launch_bounds__(kActThreads) MixKernel(const Mix mix) {
  const int64_t row = blockIdx.x, at = row * mix.width, i = ElementOfThread();
  for (int64_t j = i; j < i + 4 && j < mix.width; ++j) {
    float share = mix.share;
    if (mix.gate != nullptr) {
      share = Sigmoid(mix.gate[at + j] + mix.bias[j]);
    }
    float& x = mix.x[row * mix.x_stride + j];
    x = fmaf(mix.target[at + j] - x, share, x);
  }
}

__global__ void __launch_bounds__(kActThreads)
    GateKernel(const Activations x, int64_t n, const float* gate, int64_t gate_stride) {
  const int64_t at = blockIdx.x * n, i = ElementOfThread();
  for (int64_t j = i; j < i + 4 && j < n; ++j) {
    const float share = Sigmoid(gate[blockIdx.x * gate_stride + j]);
    if (x.f32 != nullptr) {
      x.f32[at + j] *= share;
    } else {
      BF16& value = x.bf16[at + j];
      const float wide = __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
      value.bits = static_cast<uint16_t>(PackBF16(wide * share, 0));
    }
  }
}

__global__ void __launch_bounds__(kActThreads)
    CopyKernel(const float* x, int64_t n, const Activations y) {
  const int64_t row = blockIdx.x, i = ElementOfThread();
  if (i < n) Store4(y, row, i, n, false, Load4(x + row * n, i, n, false, 0));
}

__global__ void __launch_bounds__(kActThreads) SoftCapKernel(float* x, int64_t n, float cap) {
  const int64_t at = blockIdx.x * n, i = ElementOfThread();
  for (int64_t j = i; j < i + 4 && j < n; ++j) x[at + j] = tanhf(x[at + j] / cap) * cap;
}

// Launches one thread block per 4 kActThreads elements of a row; grid x: row.
template <class Kernel, class... Args>
void LaunchElementwise(DeviceContext& context, Kernel kernel, int64_t n_rows, int64_t n,
                       Args... args) {
  if (n_rows == 0 || n == 0) return;
  const auto parts = static_cast<unsigned>((n + 4 * kActThreads - 1) / (4 * kActThreads));
  Launch(context, kernel, dim3(static_cast<unsigned>(n_rows), parts), dim3(kActThreads), 0,
         args...);
}

__global__ void __launch_bounds__(kActThreads)
    SwiGluKernel(const float* gate_up, int64_t n, bool aligned, const Activations y) {
  const int64_t row = blockIdx.x;
  const int64_t i = (int64_t{blockIdx.y} * kActThreads + threadIdx.x) * 4;
  if (i >= n) return;
  const float* gates = gate_up + row * 2 * n;
  const float4 gate = Load4(gates, i, n, aligned, 0);
  const float4 up = Load4(gates + n, i, n, aligned, 0);
  Store4(y, row, i, n, aligned,
         make_float4(Silu(gate.x) * up.x, Silu(gate.y) * up.y, Silu(gate.z) * up.z,
                     Silu(gate.w) * up.w));
}

// One thread block per row, summed like the squares of RmsNormKernel.
__global__ void __launch_bounds__(kMaxSumThreads)
    LogSumExpKernel(const float* x, int64_t n, bool aligned, float* out) {
  const float* in = x + int64_t{blockIdx.x} * n;
  const int64_t first = int64_t{threadIdx.x} * 4, stride = int64_t{blockDim.x} * 4;
  const SharedPtr<float> partial = DynamicShared<float>(0);
  float highest = -INFINITY;
  float nothing = 0;  // or NaN once some x is not finite
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, aligned, in[0]);
    nothing = fmaf(v.x, 0, fmaf(v.y, 0, fmaf(v.z, 0, fmaf(v.w, 0, nothing))));
    highest = fmaxf(highest, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  const float max = BlockFold(highest, partial, static_cast<int>(blockDim.x) / kWarp,
                              [](float a, float b) { return fmaxf(a, b); });
  float4 sum = make_float4(nothing, 0, 0, 0);
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, aligned, -INFINITY);
    sum.x += expf(v.x - max);
    sum.y += expf(v.y - max);
    sum.z += expf(v.z - max);
    sum.w += expf(v.w - max);
  }
  const float total = BlockSum((sum.x + sum.y) + (sum.z + sum.w), partial + kWarp);
  if (threadIdx.x == 0) out[blockIdx.x] = max + logf(total);
}

}  // namespace

void RmsNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
             std::span<const int32_t> rows) {
  LaunchNorm(context, RmsNormKernel, x, weights, y, rows);
}

void LayerNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
               std::span<const int32_t> rows) {
  LaunchNorm(context, LayerNormKernel, x, weights, y, rows);
}

void SquaredRelu(DeviceContext& context, TensorView x, TensorView y) {
  const int64_t n = x.shape[1];
  LaunchElementwise(context, SquaredReluKernel, x.shape[0], n, x.as<const float>(), n,
                    ToActivations(y));
}

void AddScaled(DeviceContext& context, TensorView x, float a, TensorView y, float b) {
  const int64_t n = x.shape[1];
  LaunchElementwise(context, AddScaledKernel, x.shape[0], n, x.as<float>(), a, y.as<const float>(),
                    b, n);
}

void AddBias(DeviceContext& context, TensorView x, TensorView bias, float scale) {
  LaunchElementwise(context, AddBiasKernel, x.shape[0], x.shape[1], x.as<float>(),
                    bias.as<const float>(), scale, x.shape[1]);
}

void MixTowards(DeviceContext& context, const Mix& mix) {
  LaunchElementwise(context, MixKernel, mix.n_rows, mix.width, mix);
}

void GateBySigmoid(DeviceContext& context, TensorView x, const float* gate, int64_t gate_stride) {
  LaunchElementwise(context, GateKernel, x.shape[0], x.shape[1], ToActivations(x), x.shape[1], gate,
                    gate_stride);
}

void Copy(DeviceContext& context, TensorView x, TensorView y) {
  const int64_t n = x.shape[1];
  LaunchElementwise(context, CopyKernel, x.shape[0], n, x.as<const float>(), n, ToActivations(y));
}

void SoftCap(DeviceContext& context, TensorView x, float cap) {
  LaunchElementwise(context, SoftCapKernel, x.shape[0], x.shape[1], x.as<float>(), x.shape[1], cap);
}

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  const int64_t n = y.shape[1], n_rows = y.shape[0];
  if (n_rows == 0) return;
  constexpr int64_t kBlockElements = 4 * kActThreads;
  const dim3 grid(static_cast<unsigned>(n_rows),
                  static_cast<unsigned>((n + kBlockElements - 1) / kBlockElements));
  const dim3 block(RowThreads(n, kActThreads));
  const bool aligned =
      Aligned(gate_up.data, n, sizeof(float)) && Aligned(y.data, n, DTypeBytes(y.dtype));
  Launch(context, SwiGluKernel, grid, block, 0, gate_up.as<float>(), n, aligned, ToActivations(y));
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  const int64_t n = x.shape[1];
  if (x.shape[0] == 0) return;
  const size_t shared_bytes = 2 * kWarp * sizeof(float);
  Launch(context, LogSumExpKernel, dim3(static_cast<unsigned>(x.shape[0])),
         dim3(RowThreads(n, kMaxSumThreads)), shared_bytes, x.as<float>(), n,
         Aligned(x.data, n, sizeof(float)), out);
}

}  // namespace ovq::kernels::cuda
