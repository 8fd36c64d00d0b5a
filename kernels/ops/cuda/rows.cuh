// Helpers of the row-wise kernels: four adjacent elements at a time, and sums over a thread block.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/common/tensor.h"

namespace ovq::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// Threads for a row of `width` elements, four elements each at a time. The number, and with it the
// order of a sum over the thread block, is a function of the width alone.
inline int RowThreads(int64_t width, int max_threads) {
  const int64_t threads = (width + 4 * kWarp - 1) / (4 * kWarp) * kWarp;
  return static_cast<int>(threads < max_threads ? threads : max_threads);
}

// Whether rows of `width` elements of `bytes` each can be read four elements at a time.
inline bool Aligned(const void* data, int64_t width, size_t bytes) {
  return width % 4 == 0 && reinterpret_cast<uintptr_t>(data) % (4 * bytes) == 0;
}

// Elements i .. i + 3 of p[n], i < n; `fill` after the end. aligned: all four, by one instruction.
__device__ inline float4 Load4(const float* p, int64_t i, int64_t n, bool aligned, float fill) {
  if (aligned) return *reinterpret_cast<const float4*>(p + i);
  float4 v = make_float4(p[i], fill, fill, fill);
  if (i + 1 < n) v.y = p[i + 1];
  if (i + 2 < n) v.z = p[i + 2];
  if (i + 3 < n) v.w = p[i + 3];
  return v;
}

// Elements i .. i + 3 of p[n], i < n, widened; 0 after the end.
__device__ inline float4 Load4(const BF16* p, int64_t i, int64_t n, bool aligned) {
  uint2 packed = make_uint2(0, 0);
  if (aligned) {
    packed = *reinterpret_cast<const uint2*>(p + i);
  } else {
    packed.x = p[i].bits;
    if (i + 1 < n) packed.x |= static_cast<uint32_t>(p[i + 1].bits) << 16;
    if (i + 2 < n) packed.y = p[i + 2].bits;
    if (i + 3 < n) packed.y |= static_cast<uint32_t>(p[i + 3].bits) << 16;
  }
  return make_float4(__uint_as_float(packed.x << 16), __uint_as_float(packed.x & 0xffff0000u),
                     __uint_as_float(packed.y << 16), __uint_as_float(packed.y & 0xffff0000u));
}

__device__ inline void Store4(float* p, int64_t i, int64_t n, bool aligned, float4 v) {
  if (aligned) {
    *reinterpret_cast<float4*>(p + i) = v;
    return;
  }
  p[i] = v.x;
  if (i + 1 < n) p[i + 1] = v.y;
  if (i + 2 < n) p[i + 2] = v.z;
  if (i + 3 < n) p[i + 3] = v.w;
}

__device__ inline void Store4(BF16* p, int64_t i, int64_t n, bool aligned, float4 v) {
  const uint2 packed = make_uint2(PackBF16(v.x, v.y), PackBF16(v.z, v.w));
  if (aligned) {
    *reinterpret_cast<uint2*>(p + i) = packed;
    return;
  }
  p[i].bits = static_cast<uint16_t>(packed.x);
  if (i + 1 < n) p[i + 1].bits = static_cast<uint16_t>(packed.x >> 16);
  if (i + 2 < n) p[i + 2].bits = static_cast<uint16_t>(packed.y);
  if (i + 3 < n) p[i + 3].bits = static_cast<uint16_t>(packed.y >> 16);
}

__device__ inline void Store4(const Activations& y, int64_t row, int64_t i, int64_t n, bool aligned,
                              float4 v) {
  if (y.f32 != nullptr) return Store4(y.f32 + row * n, i, n, aligned, v);
  Store4(y.bf16 + row * n, i, n, aligned, v);
}

// 1 / (1 + e^-z), with the exponential of -|z| alone: it cannot overflow.
__device__ inline float Sigmoid(float z) {
  const float e = expf(-fabsf(z));
  return (z < 0 ? e : 1.0f) / (1.0f + e);
}
__device__ inline float Silu(float z) { return z * Sigmoid(z); }

// Folds the values of a warp; every lane gets the result.
template <class T, class Fold>
__device__ inline T WarpFold(T value, Fold fold) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fold(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

__device__ inline float WarpSum(float value) {
  return WarpFold(value, [](float a, float b) { return a + b; });
}

// Folds the values of the thread block in a fixed order; every thread must call it and gets the
// result. partial: one per warp, not to be reused before a barrier.
template <class T, class Fold>
__device__ inline T BlockFold(T value, SharedPtr<T> partial, int n_warps, Fold fold) {
  const T of_warp = WarpFold(value, fold);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  T result = partial[0];
  for (int warp = 1; warp < n_warps; ++warp) {
    const T other = partial[warp];
    result = fold(result, other);
  }
  return result;
}

__device__ inline float BlockSum(float value, SharedPtr<float> partial) {
  return BlockFold(value, partial, static_cast<int>(blockDim.x) / kWarp,
                   [](float a, float b) { return a + b; });
}

// 1 / sqrt(mean(x^2) + eps) of a row, by one warp. Lane t sums the squares of elements 4t .. 4t +
// 3, then 4 (t + 32) and so on, in four chains; several loads are on their way at once.
__device__ inline float RmsFactor(const float* x, int64_t n, float eps, bool aligned) {
  constexpr int kAtOnce = 10, kWarpElements = 4 * kWarp;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int64_t first = threadIdx.x % kWarp * 4; first < n; first += kAtOnce * kWarpElements) {
    float4 loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t at = first + i * kWarpElements;
      loaded[i] = at < n ? Load4(x, at, n, aligned, 0) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float4 v = loaded[i];
      sum = make_float4(fmaf(v.x, v.x, sum.x), fmaf(v.y, v.y, sum.y), fmaf(v.z, v.z, sum.z),
                        fmaf(v.w, v.w, sum.w));
    }
  }
  const float total = WarpSum((sum.x + sum.y) + (sum.z + sum.w));
  return 1.0f / sqrtf(total / static_cast<float>(n) + eps);
}

// Four elements of the normalized row.
__device__ inline float4 RmsNormed(float4 v, float factor, float4 weight, float4 bias) {
  return make_float4(v.x * factor * weight.x + bias.x, v.y * factor * weight.y + bias.y,
                     v.z * factor * weight.z + bias.z, v.w * factor * weight.w + bias.w);
}

}  // namespace ovq::kernels::cuda
