// Normalize  y[i] = r / sqrt(mean(r^2) + eps) * weight (+ bias), r = x[rows[i]]; x [n, d]; or
//            y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias
// MapRows    the equations of RowMap
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x), NaN unless all are finite; x [n, m],
// out [n]
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kMaxNormThreads = 256;
constexpr int kRmsWarps = 8;
constexpr int kMaxSumThreads = 1024;
constexpr int kActThreads = 256;

// A warp for each row.
__global__ void __launch_bounds__(kRmsWarps* kWarp)
    RmsNormKernel(const NormTask task, bool aligned) {
  AllowNextKernel();
  WaitForKernelsBefore();
  const int64_t row = int64_t{blockIdx.x} * kRmsWarps + threadIdx.x / kWarp, n = task.width;
  if (row >= task.n_rows) return;
  const float* in = task.x + (task.rows == nullptr ? row : task.rows[row]) * n;
  const float factor = RmsFactor(in, n, task.eps, aligned);
#pragma unroll 4
  for (int64_t i = threadIdx.x % kWarp * 4; i < n; i += 4 * kWarp) {
    const float4 v = Load4(in, i, n, aligned, 0);
    const float4 w = Load4(task.weight, i, n, aligned, 0);
    const float4 b =
        task.bias == nullptr ? make_float4(0, 0, 0, 0) : Load4(task.bias, i, n, aligned, 0);
    Store4(task.y, row, i, n, aligned, RmsNormed(v, factor, w, b));
  }
}

// One thread block per row. Thread t sums elements 4t .. 4t + 3, then 4 (t + threads) and so on. y
// may be x: a thread writes only elements that it alone has read.
__global__ void __launch_bounds__(kMaxNormThreads) LayerNormKernel(const NormTask task) {
  const int64_t row = blockIdx.x, n = task.width;
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

__device__ bool ReadsY(const RowMap& map) {
  switch (map.fn) {
    case RowMap::kAddBias:
    case RowMap::kMixTowards:
    case RowMap::kGate:
    case RowMap::kSoftCap:
      return true;
    case RowMap::kAddScaled:
      return map.p != 0;
    default:
      return false;
  }
}

// An element of y from those of a, b, c and y, of which an absent one is 0.
__device__ float Mapped(const RowMap& map, float a, float b, float c, float y) {
  switch (map.fn) {
    case RowMap::kSwiGlu:
      return Silu(a) * b;
    case RowMap::kGeGlu:
      return a * Sigmoid(2 * kGeluScale * fmaf(a * a * a, kGeluCube, a)) * b;
    case RowMap::kSquaredRelu:
      return fmaxf(a, 0) * fmaxf(a, 0);
    case RowMap::kAddScaled:
      return map.p == 0 ? a * map.q : fmaf(y, map.p, a * map.q);
    case RowMap::kAddBias:
      return (y + c) * map.p;
    case RowMap::kMixTowards:
      return fmaf(a - y, map.b == nullptr ? map.p : Sigmoid(b + c), y);
    case RowMap::kGate:
      return y * Sigmoid(a);
    case RowMap::kSoftCap:
      return tanhf(y / map.p) * map.p;
    case RowMap::kCopy:
      break;
  }
  return a;
}

// Grid (rows, parts of a row); a thread has four adjacent elements.
__global__ void __launch_bounds__(kActThreads)
    MapKernel(const __grid_constant__ RowMap map, bool aligned) {
  AllowNextKernel();
  WaitForKernelsBefore();
  const int64_t row = blockIdx.x, n = map.width;
  const int64_t i = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * 4;
  if (i >= n) return;
  const auto load = [&](const float* x, int64_t stride) {
    return x == nullptr ? make_float4(0, 0, 0, 0) : Load4(x + row * stride, i, n, aligned, 0);
  };
  const float4 a = load(map.a, map.a_stride), b = load(map.b, map.b_stride), c = load(map.c, 0);
  float4 y = make_float4(0, 0, 0, 0);
  if (ReadsY(map)) {
    y = map.y.f32 != nullptr ? load(map.y.f32, map.y_stride)
                             : Load4(map.y.bf16 + row * map.y_stride, i, n, aligned);
  }
  const float4 mapped =
      make_float4(Mapped(map, a.x, b.x, c.x, y.x), Mapped(map, a.y, b.y, c.y, y.y),
                  Mapped(map, a.z, b.z, c.z, y.z), Mapped(map, a.w, b.w, c.w, y.w));
  if (map.y.f32 != nullptr) return Store4(map.y.f32 + row * map.y_stride, i, n, aligned, mapped);
  Store4(map.y.bf16 + row * map.y_stride, i, n, aligned, mapped);
}

// One thread block per row. Thread t sums elements 4t .. 4t + 3, then 4 (t + threads) and so on, in
// four chains.
__global__ void __launch_bounds__(kMaxSumThreads)
    LogSumExpKernel(const float* x, int64_t n, bool aligned, float* out) {
  AllowNextKernel();
  WaitForKernelsBefore();
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

void Normalize(DeviceContext& context, const NormTask& task) {
  if (task.n_rows == 0) return;
  if (task.is_centered) {
    return Launch(context, LayerNormKernel, dim3(static_cast<unsigned>(task.n_rows)),
                  dim3(RowThreads(task.width, kMaxNormThreads)), 2 * kWarp * sizeof(float), task);
  }
  const auto aligned = [&](const void* data, size_t bytes) {
    return Aligned(data, task.width, bytes);
  };
  const bool all_aligned = aligned(task.x, sizeof(float)) && aligned(task.weight, sizeof(float)) &&
                           aligned(task.bias, sizeof(float)) &&
                           aligned(task.y.f32, sizeof(float)) && aligned(task.y.bf16, sizeof(BF16));
  LaunchEarly(context, RmsNormKernel,
              dim3(static_cast<unsigned>((task.n_rows + kRmsWarps - 1) / kRmsWarps)),
              dim3(kRmsWarps * kWarp), 0, task, all_aligned);
}

void MapRows(DeviceContext& context, const RowMap& map) {
  if (map.n_rows == 0 || map.width == 0) return;
  const int64_t quads = (map.width + 3) / 4, parts = (quads + kActThreads - 1) / kActThreads;
  const int64_t warps = (quads + parts * kWarp - 1) / (parts * kWarp);
  const auto aligned = [&](const void* data, int64_t stride, size_t bytes) {
    return data == nullptr || Aligned(data, stride, bytes);
  };
  const bool all_aligned = map.width % 4 == 0 && aligned(map.a, map.a_stride, sizeof(float)) &&
                           aligned(map.b, map.b_stride, sizeof(float)) &&
                           aligned(map.c, 0, sizeof(float)) &&
                           aligned(map.y.f32, map.y_stride, sizeof(float)) &&
                           aligned(map.y.bf16, map.y_stride, sizeof(BF16));
  LaunchEarly(context, MapKernel,
              dim3(static_cast<unsigned>(map.n_rows), static_cast<unsigned>(parts)),
              dim3(static_cast<unsigned>(warps * kWarp)), 0, map, all_aligned);
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  const int64_t n = x.shape[1];
  if (x.shape[0] == 0) return;
  const size_t shared_bytes = 2 * kWarp * sizeof(float);
  LaunchEarly(context, LogSumExpKernel, dim3(static_cast<unsigned>(x.shape[0])),
              dim3(RowThreads(n, kMaxSumThreads)), shared_bytes, x.as<float>(), n,
              Aligned(x.data, n, sizeof(float)), out);
}

}  // namespace ovq::kernels::cuda
