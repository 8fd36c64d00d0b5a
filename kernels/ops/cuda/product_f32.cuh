// y[n, out] (+)= x[n, in] W^T in float32. W [out, in] is packed as
//   [out tiles of 64][inputs][64 outputs],
// with zeros past `in` and `out`. A segment's sum is one chain of fused multiply-adds over its
// inputs in their order.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"
#include "kernels/ops/cuda/product.cuh"

namespace ovq::kernels::cuda {

inline constexpr int kPanel = 64;
inline constexpr int kSegmentF32 = 128;

__device__ inline const float* Panel(const ProductTask& p, int64_t panel) {
  return static_cast<const float*>(p.weights) + panel * p.n_segments * kSegmentF32 * kPanel;
}

// The Few argument of FewRows for float32: one output per lane.
class FewRowsF32 {
 public:
  static constexpr int kRows = 16;
  static constexpr int kOuts = kLanes;
  static constexpr int kStride = kOuts;

  __device__ explicit FewRowsF32(const ProductTask& task)
      : p_(task),
        weights_(Panel(task, blockIdx.x / 2) + blockIdx.x % 2 * kOuts + threadIdx.x % kLanes) {}

  __device__ void Load(int64_t) {}  // Multiply reads the weights one by one

  __device__ void Multiply(int64_t segment, SharedPtr<float> partial) const {
    const auto* x = static_cast<const float*>(p_.x);
    const int64_t first = segment * kSegmentF32;
    const int64_t end = min(first + kSegmentF32, p_.in);
    float sum[kRows] = {};
    for (int64_t i = first; i < end; ++i) {
      const float w = weights_[i * kPanel];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < p_.n) sum[r] = fmaf(w, x[r * p_.in + i], sum[r]);
      }
    }
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
    for (int r = 0; r < kRows; ++r) partial[r * kStride + lane] = sum[r];
  }

 private:
  const ProductTask& p_;
  const float* weights_;
};

// --- many rows -------------------------------------------------------------------------------
// A block has 64 outputs and 64 rows, a thread 4 by 4 of them. Steps of 16 inputs pass through
// shared memory: weights [16][64 outputs], x transposed [16][64 rows].

inline constexpr int kManyRowsF32 = 64;
inline constexpr int kManyThreadsF32 = 256;
inline constexpr int kChunkF32 = 16;
inline constexpr int kRowStrideF32 = kManyRowsF32 + 4;  // floats: fewer conflicts when transposing
inline constexpr uint32_t kManyRowsSharedBytesF32 =
    kChunkF32 * (kPanel + kRowStrideF32) * sizeof(float);

// Each thread's four adjacent elements of the weights and of x, for 16 inputs.
struct ChunkF32 {
  float4 w;
  float4 x;  // zeros outside x
};
__device__ inline ChunkF32 LoadChunkF32(const ProductTask& p, int64_t step) {
  const int thread = static_cast<int>(threadIdx.x);
  const float* w = Panel(p, blockIdx.y) + step * kChunkF32 * kPanel + thread * 4;
  const int64_t row = int64_t{blockIdx.x} * kManyRowsF32 + thread / 4;
  const int64_t i = step * kChunkF32 + thread % 4 * 4;
  ChunkF32 loaded = {*reinterpret_cast<const float4*>(w), make_float4(0, 0, 0, 0)};
  if (row >= p.n) return loaded;
  const float* x = static_cast<const float*>(p.x) + row * p.in + i;
  if (i < p.in) loaded.x.x = x[0];
  if (i + 1 < p.in) loaded.x.y = x[1];
  if (i + 2 < p.in) loaded.x.z = x[2];
  if (i + 3 < p.in) loaded.x.w = x[3];
  return loaded;
}

__device__ inline void MultiplyChunkF32(float (&sum)[4][4], SharedPtr<const float4> w,
                                        SharedPtr<const float4> x) {
#pragma unroll
  for (int i = 0; i < kChunkF32; ++i) {
    const float4 w4 = w[i * (kPanel / 4)];
    const float4 x4 = x[i * (kRowStrideF32 / 4)];
    const float of_out[4] = {w4.x, w4.y, w4.z, w4.w}, of_row[4] = {x4.x, x4.y, x4.z, x4.w};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int o = 0; o < 4; ++o) sum[r][o] = fmaf(of_out[o], of_row[r], sum[r][o]);
    }
  }
}

// grid: (row tiles of 64, panels).
__global__ void __launch_bounds__(kManyThreadsF32) ManyRowsF32(const ProductTask p) {
  const int thread = static_cast<int>(threadIdx.x), column = thread % 16, row = thread / 16;
  const SharedPtr<float> w = DynamicShared<float>(0), x = w + kChunkF32 * kPanel;
  const int64_t n_steps = p.n_segments * (kSegmentF32 / kChunkF32);
  float total[4][4] = {}, sum[4][4] = {};
  ChunkF32 next = LoadChunkF32(p, 0);
  for (int64_t step = 0; step < n_steps; ++step) {
    __syncthreads();
    SharedCast<float4>(w)[thread] = next.w;
    const SharedPtr<float> to = x + (thread % 4 * 4 * kRowStrideF32 + thread / 4);
    to[0] = next.x.x;
    to[kRowStrideF32] = next.x.y;
    to[2 * kRowStrideF32] = next.x.z;
    to[3 * kRowStrideF32] = next.x.w;
    __syncthreads();
    if (step + 1 < n_steps) next = LoadChunkF32(p, step + 1);
    MultiplyChunkF32(sum, SharedCast<const float4>(w) + column, SharedCast<const float4>(x) + row);
    if ((step + 1) % (kSegmentF32 / kChunkF32) != 0) continue;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        total[r][o] += sum[r][o];
        sum[r][o] = 0;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t to_row = int64_t{blockIdx.x} * kManyRowsF32 + row * 4 + r;
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      const int64_t to = int64_t{blockIdx.y} * kPanel + column * 4 + o;
      p.Store(to_row, to, total[r][o]);
    }
  }
}

}  // namespace ovq::kernels::cuda
