// Products of few rows on tensor cores, each sum one chain over the inputs in their order.
#pragma once

#include <cstdint>

#include "kernels/common/device.h"
#include "kernels/common/tensor.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/ops_device.h"

namespace ovq::kernels::cuda {

inline constexpr int64_t kMaxChainRows = 16;

// y[n, out] (+)= x[n, in] W^T, n at most kMaxChainRows. All rows start at multiples of 16 bytes.
struct ChainTask {
  const BF16* weights;  // [out, in]
  const BF16* x;        // [n, in]
  float* y;             // [n, out]
  int64_t n, in, out;
  bool accumulate = false;
  BF16* swiglu = nullptr;  // [n, out / 2]: gets SwiGlu(x W^T), and y nothing
  NormTask norm = {};      // with norm.x: writes x, which is norm.y, first
};

// Whether LaunchChain can compute products of this shape for every number of rows.
bool FitsChain(DeviceContext& context, int64_t in, int64_t out);

// A sum begins with zero and adds 16 products after another, an instruction of the tensor cores
// for each 16; with accumulate it is added to y last. So do the kernels of cuBLASLt that split no
// sum: their bits and these are the same, as far as a GPU's instructions for matrices agree.
// Norm and SwiGLU have the bits of their own kernels. The kernel starts early (LaunchEarly) and
// reads its weights before the kernels before it end.
void LaunchChain(DeviceContext& context, const ChainTask& task);

// Product::fused of bfloat16 weights [out, in] that FitsChain: false for more rows than
// kMaxChainRows.
bool ApplyChain(DeviceContext& context, TensorView weights, const ProductRows& x, TensorView y,
                ProductEnd end);

}  // namespace ovq::kernels::cuda
