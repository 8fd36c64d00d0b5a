// PrepareHeads, of which UnitNorm and Rope are parts, in place over x [n_rows, n_heads, d], |x| =
// sqrt(sum(x^2) + 1e-6), at a = position theta^(-2i/d), i < d/2:
//   u = scale[head] x / |x|
//   x[i], x[i + d/2] = u[i] cos a - u[i + d/2] sin a, u[i + d/2] cos a + u[i] sin a
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/rows.cuh"
#include "kernels/ops/ops_device.h"

namespace ovq::cuda {
namespace {

constexpr int kEmbedThreads = 256;
constexpr int kMaxHeadWarps = 8;
constexpr int kMaxHeadThreads = kMaxHeadWarps * kWarp;

// What HeadsKernel does with heads [n_heads, head_dim] of each row.
struct HeadsTask {
  HeadRows x[2];  // one head size; n_heads 0 where there is none
  const float* scale[2];
  const Phase* frequencies;  // [head_dim / 2]; null: no RoPE
  const int64_t* positions;
  bool unit_norm;
  bool round;
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
  const int head_dim = task.x[0].head_dim, half = head_dim / 2;
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
  const int n_first = task.x[0].n_heads;
  for (int h = static_cast<int>(threadIdx.x) / kWarp; h < n_first + task.x[1].n_heads;
       h += n_warps) {
    // Written out: an index into the arrays would put the task into local memory.
    const bool first = h < n_first;
    const int head = first ? h : h - n_first;
    float* data = first ? task.x[0].data : task.x[1].data;
    const int64_t stride = first ? task.x[0].row_stride : task.x[1].row_stride;
    const float* scales = first ? task.scale[0] : task.scale[1];
    const float scale = scales == nullptr ? 1.0f : scales[head];
    PrepareHead(data + row * stride + int64_t{head} * head_dim, head_dim, scale, task, cosine,
                sine);
  }
}

void LaunchHeads(DeviceContext& context, const HeadsTask& task) {
  const HeadRows& x = task.x[0];
  if (x.n_rows == 0) return;
  const int heads = x.n_heads + task.x[1].n_heads;
  const size_t shared_bytes =
      task.frequencies == nullptr ? 0 : static_cast<size_t>(x.head_dim) * sizeof(float);
  Launch(context, HeadsKernel, dim3(static_cast<unsigned>(x.n_rows)),
         dim3((heads < kMaxHeadWarps ? heads : kMaxHeadWarps) * kWarp), shared_bytes, task);
}

__device__ float Widened(float x) { return x; }
__device__ float Widened(BF16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
// binary16. Its fields, moved to where a float has them, are the number times 2^-112, subnormal or
// not.
__device__ float Widened(uint16_t x) {
  const uint32_t sign = (x & 0x8000u) << 16, rest = x & 0x7fffu;
  const float finite = __uint_as_float(rest << 13) * 0x1p112f;
  const uint32_t bits = rest < 0x7c00u ? __float_as_uint(finite) : 0x7f800000u | rest << 13;
  return __uint_as_float(sign | bits);
}

template <class T>
__global__ void __launch_bounds__(kEmbedThreads)
    EmbedKernel(const T* table, const int32_t* ids, int64_t width, float* y) {
  const int64_t row = blockIdx.x;
  const T* from = table + ids[row] * width;
  for (int64_t i = threadIdx.x; i < width; i += kEmbedThreads) {
    y[row * width + i] = Widened(from[i]);
  }
}

}  // namespace

void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale) {
  LaunchHeads(context, {.x = {x, {}},
                        .scale = {scale, nullptr},
                        .frequencies = nullptr,
                        .positions = nullptr,
                        .unit_norm = true,
                        .round = false});
}

void Rope(DeviceContext& context, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& table) {
  LaunchHeads(context, {.x = {x, {}},
                        .scale = {nullptr, nullptr},
                        .frequencies = table.frequencies(),
                        .positions = positions.data(),
                        .unit_norm = false,
                        .round = false});
}

void PrepareHeads(DeviceContext& context, const HeadPrep& prep) {
  LaunchHeads(context, {.x = {prep.queries, prep.keys},
                        .scale = {prep.beta, nullptr},
                        .frequencies = prep.rope == nullptr ? nullptr : prep.rope->frequencies(),
                        .positions = prep.positions.data(),
                        .unit_norm = true,
                        .round = prep.round_to_bf16});
}

void Embed(DeviceContext& context, TensorView table, std::span<const int32_t> ids, TensorView y) {
  if (ids.empty()) return;
  const dim3 grid(static_cast<unsigned>(ids.size())), block(kEmbedThreads);
  const int64_t width = y.shape[1];
  float* out = y.as<float>();
  switch (table.dtype) {
    case DType::kF32:
      return Launch(context, EmbedKernel<float>, grid, block, 0, table.as<float>(), ids.data(),
                    width, out);
    case DType::kBF16:
      return Launch(context, EmbedKernel<BF16>, grid, block, 0, table.as<BF16>(), ids.data(), width,
                    out);
    default:
      return Launch(context, EmbedKernel<uint16_t>, grid, block, 0, table.as<uint16_t>(),
                    ids.data(), width, out);
  }
}

}  // namespace ovq::cuda
