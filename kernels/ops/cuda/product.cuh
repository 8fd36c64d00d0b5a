// Shared by the bfloat16 and float32 products: their arguments and the walk over segments for few
// rows.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"
#include "kernels/ops/experts.h"

namespace ovq::kernels::cuda {

inline constexpr int kLanes = 32;
inline constexpr int kSegment = 128;  // inputs that are summed by themselves

// y[n, out] (+)= x[n, in] W^T; with tiles of experts, row i with the weights of its tile's expert.
struct ProductTask {
  const void* weights;  // packed, see product_bf16.cuh and product_f32.cuh
  const void* x;        // [n, in], in the compute type
  float* y;             // [n, out]
  int64_t n, in, out;
  int64_t n_segments;  // segments of W, padded
  bool accumulate;
  bool aligned;                   // rows of bfloat16 x start at multiples of 16 bytes
  const float* scales = nullptr;  // [out], for int8 weights
  // With tiles: each at most tile_rows of the n rows; an expert's weights are expert_bytes, its
  // scales [out], behind those of the expert before it.
  const ExpertTile* tiles = nullptr;
  int64_t n_tiles = 0, tile_rows = 0, expert_bytes = 0;
  int64_t first_part = 0;  // of this launch

  // How many parts of up to `rows` rows, each of one expert, have all rows.
  int64_t Parts(int64_t rows) const {
    return tiles == nullptr ? (n + rows - 1) / rows : n_tiles * ((tile_rows + rows - 1) / rows);
  }
  // The product of the launch's part `index` alone; it may have no rows.
  template <class X>
  __device__ ProductTask Part(int64_t index, int64_t rows) const {
    ProductTask part = *this;
    index += first_part;
    int64_t first = index * rows, end = n;
    if (tiles != nullptr) {
      const int64_t per_tile = (tile_rows + rows - 1) / rows;
      const ExpertTile tile = tiles[index / per_tile];
      first = tile.first + index % per_tile * rows, end = tile.first + tile.n;
      part.weights = static_cast<const unsigned char*>(weights) + tile.expert * expert_bytes;
      if (scales != nullptr) part.scales = scales + tile.expert * out;
    }
    part.n = min(rows, end - first);
    part.x = static_cast<const X*>(x) + first * in;
    part.y = y + first * out;
    return part;
  }

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

// grid: tiles of outputs, parts of kRows; block: up to kMaxFewWarps warps.
template <class Few>
__global__ void __launch_bounds__(kMaxFewWarps* kLanes) FewRows(const ProductTask all) {
  const ProductTask task = all.Part<typename Few::X>(blockIdx.y, Few::kRows);
  if (task.n <= 0) return;
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
