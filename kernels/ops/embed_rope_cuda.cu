// PrepareHeads, in place over x [n_rows, n_heads, d], |x| = sqrt(sum(x^2) + 1e-6), at
// a = position theta^(-2i/d), i < d/2:
//   u = scale[head] x / |x|
//   x[i], x[i + d/2] = u[i] cos a - u[i + d/2] sin a, u[i + d/2] cos a + u[i] sin a
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::cuda {
namespace {

constexpr int kEmbedThreads = 256;
constexpr int kMaxHeadWarps = 8;
constexpr int kMaxHeadThreads = kMaxHeadWarps * kWarp;

// HeadPrep as the kernel reads it.
struct HeadsTask {
  HeadRows queries, keys;
  const float* beta;
  const Phase* frequencies;  // [head_dim / 2]; null: no RoPE
  const int64_t* positions;
  bool unit_norm, round;
};

__device__ float RoundedToBF16(float x) { return __uint_as_float(PackBF16(x, 0) << 16); }

// One warp. Lane l has the pairs (i, i + h), h = ceil(head_dim / 2), i = l, l + 32, ...: the pairs
// that RoPE rotates, so that no lane needs another's elements after the norm. cosine, sine [h]:
// read only with RoPE.
__device__ void PrepareHead(float* data, int head_dim, float scale, const HeadsTask& task,
                            SharedPtr<const float> cosine, SharedPtr<const float> sine) {
  const int half = (head_dim + 1) / 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float factor = 1;
  if (task.unit_norm) {
    float low = 0, high = 0;
    for (int i = lane; i < half; i += kWarp) {
      low = fmaf(data[i], data[i], low);
      if (i + half < head_dim) high = fmaf(data[i + half], data[i + half], high);
    }
    factor = scale / sqrtf(WarpSum(low + high) + 1e-6f);
  }
  for (int i = lane; i < half; i += kWarp) {
    const bool pair = i + half < head_dim;
    float a = data[i] * factor;
    float b = pair ? data[i + half] * factor : 0.0f;
    if (task.frequencies != nullptr) {
      const float c = cosine[i], s = sine[i];
      const float turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
    data[i] = task.round ? RoundedToBF16(a) : a;
    if (pair) data[i + half] = task.round ? RoundedToBF16(b) : b;
  }
}

// One block a row, one warp a head at a time.
__global__ void __launch_bounds__(kMaxHeadThreads) HeadsKernel(const HeadsTask task) {
  const int64_t row = blockIdx.x;
  const int head_dim = task.queries.head_dim, half = head_dim / 2;
  const SharedPtr<float> cosine = DynamicShared<float>(0), sine = cosine + half;
  if (task.frequencies != nullptr) {
    const auto position = static_cast<Phase>(task.positions[row]);  // sign-extended
    for (int i = static_cast<int>(threadIdx.x); i < half; i += static_cast<int>(blockDim.x)) {
      double s, c;
      sincospi(HalfTurns(position * task.frequencies[i]), &s, &c);
      cosine[i] = static_cast<float>(c);
      sine[i] = static_cast<float>(s);
    }
    __syncthreads();
  }
  const int n_warps = static_cast<int>(blockDim.x) / kWarp;
  const int n_queries = task.queries.n_heads;
  for (int h = static_cast<int>(threadIdx.x) / kWarp; h < n_queries + task.keys.n_heads;
       h += n_warps) {
    const bool query = h < n_queries;
    const int head = query ? h : h - n_queries;
    float* data = query ? task.queries.data : task.keys.data;
    const int64_t stride = query ? task.queries.row_stride : task.keys.row_stride;
    const float scale = query && task.beta != nullptr ? task.beta[head] : 1.0f;
    PrepareHead(data + row * stride + int64_t{head} * head_dim, head_dim, scale, task, cosine,
                sine);
  }
}

// FloatAt of the three types. The fields of binary16, moved to where a float has them, are the
// number times 2^-112, subnormal or not.
__device__ float Widened(const void* table, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(table)[i];
  const uint32_t x = static_cast<const uint16_t*>(table)[i];
  if (dtype == DType::kBF16) return __uint_as_float(x << 16);
  const uint32_t sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
  const float finite = __uint_as_float(rest << 13) * 0x1p112f;
  const uint32_t bits = rest < 0x7c00u ? __float_as_uint(finite) : 0x7f800000u | rest << 13;
  return __uint_as_float(sign | bits);
}

__global__ void __launch_bounds__(kEmbedThreads)
    EmbedKernel(const void* table, DType dtype, const int32_t* ids, int64_t width, float* y) {
  const int64_t row = blockIdx.x, from = ids[row] * width;
  for (int64_t i = threadIdx.x; i < width; i += kEmbedThreads) {
    y[row * width + i] = Widened(table, dtype, from + i);
  }
}

}  // namespace

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  const HeadRows& x = prep.queries;
  if (x.n_rows == 0) return;
  const int n_warps = std::min(x.n_heads + prep.keys.n_heads, kMaxHeadWarps);
  const size_t table_bytes = static_cast<size_t>(x.head_dim) * sizeof(float);
  Launch(context, HeadsKernel, dim3(static_cast<unsigned>(x.n_rows)), dim3(n_warps * kWarp),
         prep.rope == nullptr ? 0 : table_bytes,
         HeadsTask{.queries = x,
                   .keys = prep.keys,
                   .beta = prep.beta,
                   .frequencies = prep.rope == nullptr ? nullptr : prep.rope->frequencies(),
                   .positions = prep.positions.data(),
                   .unit_norm = prep.unit_norm,
                   .round = prep.round_to_bf16});
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  if (ids.empty()) return;
  Launch(context, EmbedKernel, dim3(static_cast<unsigned>(ids.size())), dim3(kEmbedThreads), 0,
         table.as<void>(), table.dtype, ids.data(), y.shape[1], y.as<float>());
}

}  // namespace ovq::cuda
