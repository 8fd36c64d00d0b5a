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

// The Few argument of FewRows for float32: one output per lane.
class FewRowsF32 {
 public:
  using X = float;
  static constexpr int kRows = 16;
  static constexpr int kOuts = kLanes;
  static constexpr int kStride = kOuts;

  __device__ explicit FewRowsF32(const ProductTask& task)
      : p_(task),
        weights_(static_cast<const float*>(task.weights) +
                 int64_t{blockIdx.x} / 2 * task.n_segments * kSegment * kPanel +
                 blockIdx.x % 2 * kOuts + threadIdx.x % kLanes) {}

  __device__ void Load(int64_t) {}  // Multiply reads the weights one by one

  __device__ void Multiply(int64_t segment, SharedPtr<float> partial) const {
    const auto* x = static_cast<const float*>(p_.x);
    const int64_t first = segment * kSegment;
    const int64_t end = min(first + kSegment, p_.in);
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

}  // namespace ovq::kernels::cuda
