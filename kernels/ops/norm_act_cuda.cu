// RmsNorm    y[i] = r / sqrt(mean(r^2) + eps) * weight, r = x[rows[i]]; x [n, d], y [rows, d]
// SwiGlu     y = gate / (1 + e^-gate) * up; gate_up [n, 2f] = [gate | up], y [n, f]
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x); x [n, m], out [n]
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::cuda {
namespace {

constexpr int kMaxNormThreads = 256;
constexpr int kMaxSumThreads = 1024;
constexpr int kActThreads = 256;

struct RmsNormTask {
  const float* x;
  const float* weight;  // [n]
  const int32_t* rows;  // null: every row of x
  Activations y;
  int64_t n;
  float eps;
  bool aligned;
};

// One block a row. Thread t sums the squares of elements 4t .. 4t + 3, then 4 (t + threads) and so
// on, in four chains.
__global__ void __launch_bounds__(kMaxNormThreads) RmsNormKernel(const RmsNormTask task) {
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
    Store4(task.y, row, i, n, aligned,
           make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z,
                       v.w * factor * w.w));
  }
}

// gate * up / (1 + e^-gate), with the exponential of -|gate| alone: it cannot overflow.
__device__ float Silu(float gate, float up) {
  const float e = expf(-fabsf(gate));
  const float numerator = gate < 0 ? e : 1.0f;
  return gate * (numerator / (1.0f + e)) * up;
}

__global__ void __launch_bounds__(kActThreads)
    SwiGluKernel(const float* gate_up, int64_t n, bool aligned, const Activations y) {
  const int64_t row = blockIdx.x;
  const int64_t i = (int64_t{blockIdx.y} * kActThreads + threadIdx.x) * 4;
  if (i >= n) return;
  const float* gates = gate_up + row * 2 * n;
  const float4 gate = Load4(gates, i, n, aligned, 0);
  const float4 up = Load4(gates + n, i, n, aligned, 0);
  Store4(
      y, row, i, n, aligned,
      make_float4(Silu(gate.x, up.x), Silu(gate.y, up.y), Silu(gate.z, up.z), Silu(gate.w, up.w)));
}

// One block a row, summed like the squares of RmsNormKernel.
__global__ void __launch_bounds__(kMaxSumThreads)
    LogSumExpKernel(const float* x, int64_t n, bool aligned, float* out) {
  const float* in = x + int64_t{blockIdx.x} * n;
  const int64_t first = int64_t{threadIdx.x} * 4, stride = int64_t{blockDim.x} * 4;
  const SharedPtr<float> partial = DynamicShared<float>(0);
  float highest = -INFINITY;
  for (int64_t i = first; i < n; i += stride) {
    const float4 v = Load4(in, i, n, aligned, -INFINITY);
    highest = fmaxf(highest, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  const float max = BlockFold(highest, partial, static_cast<int>(blockDim.x) / kWarp,
                              [](float a, float b) { return fmaxf(a, b); });
  float4 sum = make_float4(0, 0, 0, 0);
  const bool infinite = fabsf(max) == INFINITY;
  if (!infinite) {
    for (int64_t i = first; i < n; i += stride) {
      const float4 v = Load4(in, i, n, aligned, -INFINITY);
      sum.x += expf(v.x - max);
      sum.y += expf(v.y - max);
      sum.z += expf(v.z - max);
      sum.w += expf(v.w - max);
    }
  }
  const float total = BlockSum((sum.x + sum.y) + (sum.z + sum.w), partial + kWarp);
  // An infinite maximum leaves nothing to subtract it from.
  if (threadIdx.x == 0) out[blockIdx.x] = infinite ? max : max + logf(total);
}

}  // namespace

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows) {
  const int64_t n = x.shape[1], n_rows = y.shape[0];
  if (n_rows == 0) return;
  const bool aligned = Aligned(x.data, n, sizeof(float)) &&
                       Aligned(weight.data, n, sizeof(float)) &&
                       Aligned(y.data, n, DTypeBytes(y.dtype));
  Launch(context, RmsNormKernel, dim3(static_cast<unsigned>(n_rows)),
         dim3(RowThreads(n, kMaxNormThreads)), kWarp * sizeof(float),
         RmsNormTask{.x = x.as<float>(),
                     .weight = weight.as<float>(),
                     .rows = rows.empty() ? nullptr : rows.data(),
                     .y = ActivationsOf(y),
                     .n = n,
                     .eps = eps,
                     .aligned = aligned});
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
  Launch(context, SwiGluKernel, grid, block, 0, gate_up.as<float>(), n, aligned, ActivationsOf(y));
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  const int64_t n = x.shape[1];
  if (x.shape[0] == 0) return;
  const size_t shared_bytes = 2 * kWarp * sizeof(float);
  Launch(context, LogSumExpKernel, dim3(static_cast<unsigned>(x.shape[0])),
         dim3(RowThreads(n, kMaxSumThreads)), shared_bytes, x.as<float>(), n,
         Aligned(x.data, n, sizeof(float)), out);
}

}  // namespace ovq::cuda
