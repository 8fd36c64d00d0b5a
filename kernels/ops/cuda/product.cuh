// Shared by the bfloat16 and float32 products: their arguments and the walk over segments for few
// rows.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"

namespace ovq::kernels::cuda {

inline constexpr int kLanes = 32;
inline constexpr int kSegment = 128;  // inputs that are summed by themselves

// y[n, out] (+)= x[n, in] W^T
struct ProductTask {
  const void* weights;  // packed, see product_bf16.cuh and product_f32.cuh
  const void* x;        // [n, in], in the compute type
  float* y;             // [n, out]
  int64_t n, in, out;
  int64_t n_segments;  // segments of W, padded
  bool accumulate;
  bool aligned;                   // rows of bfloat16 x start at multiples of 16 bytes
  const float* scales = nullptr;  // [out], for int8 weights

  __device__ void Store(int64_t row, int64_t column, float sum) const {
    if (row >= n || column >= out) return;
    float& to = y[row * out + column];
    if (scales != nullptr) sum *= scales[column];
    to = accumulate ? to + sum : sum;
  }
};

// Products of few rows. A thread block has Few::kOuts outputs of Few::kRows rows and all inputs;
// its warps process segments in turn. Few(task), made by each thread, has the type X of x and
//   Load(segment)               starts to read the weights of a segment
//   Multiply(segment, partial)  partial [kRows, kStride] = that segment's sums of [rows, kOuts]

inline constexpr int kMaxFewWarps = 8;

template <class Few>
constexpr uint32_t FewRowsSharedBytes(int n_warps) {
  return static_cast<uint32_t>(n_warps + 1) * Few::kRows * Few::kStride * sizeof(float);
}

// grid: tiles of outputs, of rows; block: up to kMaxFewWarps warps.
template <class Few>
__global__ void __launch_bounds__(kMaxFewWarps* kLanes) FewRows(const ProductTask all) {
  const int64_t first_row = int64_t{blockIdx.y} * Few::kRows;
  ProductTask task = all;  // of this block's rows
  task.n = min(int64_t{Few::kRows}, all.n - first_row);
  task.x = static_cast<const typename Few::X*>(all.x) + first_row * all.in;
  task.y = all.y + first_row * all.out;
  constexpr int kElements = Few::kRows * Few::kStride;
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  const int n_warps = n_threads / kLanes, warp = thread / kLanes;
  const SharedPtr<float> total = DynamicShared<float>(0), partial = total + kElements;
  const int n_sums = static_cast<int>(task.n) * Few::kOuts;
  const auto place = [](int i) { return i / Few::kOuts * Few::kStride + i % Few::kOuts; };
  for (int i = thread; i < n_sums; i += n_threads) total[place(i)] = 0.0f;

  Few few(task);
  if (warp < task.n_segments) few.Load(warp);
  for (int64_t first = 0; first < task.n_segments; first += n_warps) {
    const int64_t segment = first + warp;
    if (segment < task.n_segments) {
      few.Multiply(segment, partial + warp * kElements);
      if (segment + n_warps < task.n_segments) few.Load(segment + n_warps);
    }
    __syncthreads();
    const int here = static_cast<int>(min(int64_t{n_warps}, task.n_segments - first));
    for (int i = thread; i < n_sums; i += n_threads) {
      float sum = total[place(i)];
      for (int s = 0; s < here; ++s) sum += partial[s * kElements + place(i)];
      total[place(i)] = sum;
    }
    __syncthreads();
  }

  for (int i = thread; i < n_sums; i += n_threads) {
    const float sum = total[place(i)];
    task.Store(i / Few::kOuts, int64_t{blockIdx.x} * Few::kOuts + i % Few::kOuts, sum);
  }
}

}  // namespace ovq::kernels::cuda
