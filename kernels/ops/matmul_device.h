// The device-specific products behind Linear (ops.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops/ops.h"

namespace ovq::kernels {

// Weights [out_i, in] stacked along out, and the type their products are computed in.
struct StackedWeights {
  std::span<const TensorView> parts;
  int64_t in;
  int64_t out;
  DType compute;

  size_t row_bytes() const { return static_cast<size_t>(in) * DTypeBytes(compute); }
};

// The weights of Linear::Make, checked as it says.
absl::StatusOr<StackedWeights> Stack(std::span<const TensorView> parts, ProductTypes types,
                                     const DeviceContext& context);

// The name of such weights in a ProductChoice.
inline const char* WeightsName(DType compute) { return compute == DType::kF32 ? "f32" : "bf16"; }

// Copies row `row` of the stack to dst [in], in the compute type.
void CopyRow(const StackedWeights& weights, int64_t row, void* dst);

// Weights rounded as described at WeightType::kInt8: q(w_o) and r(w_o).
struct Int8Weights {
  int64_t in, out;
  std::vector<int8_t> values;  // [out, in]
  std::vector<float> scales;   // [out]
};

Int8Weights RoundToInt8(const StackedWeights& weights);

// Random activations [n, in] of the compute type in [-1, 1), for testing a product before it is
// used.
std::vector<std::byte> TestRows(int64_t n, int64_t in, DType compute);

}  // namespace ovq::kernels

namespace ovq::kernels::cpu {

// Plain SIMD: every element of y is one chain of float32 fused multiply-adds over the inputs in
// their order (a bfloat16 product is exact in float32), whatever the numbers of rows and threads.
// For machines where oneDNN's sums depend on the number of rows or where it has no bfloat16.
Product MakeSimdProduct(const StackedWeights& weights);

// oneDNN's blocked ("brgemm") matrix product. None where oneDNN would use another implementation,
// or where this one fails the test that a row's bits are the same for any number of rows.
std::optional<Product> MakeOneDnnProduct(DeviceContext& context, const StackedWeights& weights);

// MakeOneDnnProduct where it keeps the promise of ops.h, else MakeSimdProduct.
Product MakeProduct(DeviceContext& context, const StackedWeights& weights);

// Receives the sums of some neighbouring outputs, from `output` on, for a row. Any thread.
using UseSums = std::function<void(int64_t row, int64_t output, std::span<const int32_t> sums)>;

// sums[n, out] = x[n, in] values[out, in]^T of bytes x and int8 values, exactly.
struct Int8Sums {
  size_t bytes = 0;    // of the packed weights
  int offset = 0;      // 0: x are int8, -127 to 127; 128: unsigned bytes, 1 to 255
  std::string kernel;  // ProductChoice::detail
  // Passes every sum to `use` once, in parts of at most 1,024 outputs and in any order.
  std::function<void(DeviceContext& context, const std::byte* x, int64_t n, const UseSums& use)>
      apply;
};

// Kernels of our own, for machines where oneDNN has no exact sums: by AVX-VNNI, by AVX2's products
// of bytes, by NEON's dot products, or by products of 16 bits on any other instruction set.
Int8Sums MakeSimdSums(const Int8Weights& weights);
// oneDNN's sums, on AMX or VNNI. None on machines with neither, or where the sums turn out not to
// be exact.
std::optional<Int8Sums> MakeOneDnnSums(DeviceContext& context, const Int8Weights& weights);

// WeightType::kInt8 with MakeOneDnnSums, else MakeSimdSums.
Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights);
// WeightType::kInt8 with these sums of the same weights.
Product WithSums(const Int8Weights& weights, Int8Sums sums);

}  // namespace ovq::kernels::cpu

namespace ovq::kernels::cuda {

// This project's kernels. Segments of 128 inputs are each summed in one fixed order and added from
// the first to the last, whether by one thread block after another or by several at once. Few rows
// (which read the weights once, spread over many thread blocks) and many rows thus get the same
// bits. Float32 has kernels for few rows alone, which read the weights again for every 16 rows: its
// products are cuBLASLt's wherever rows are multiples of 16 bytes.
Product MakeOwnProduct(DeviceContext& context, const StackedWeights& weights);

// int8 weights times bfloat16 rows: y[i][o] = r(w_o) sum_k x[i][k] q(w_o)_k, by the same kernels.
// The compute type is kBF16.
Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights);

// Our own product of few rows (product_chain.h), where it has their bits, and the fastest
// algorithms of cuBLASLt among those that give a row the same bits for any number of rows, which is
// proved at the first product of each shape. None if there are none for all numbers of rows. `what`
// receives the algorithms, or the reason for none. A call that cuBLASLt refuses is made in parts; a
// refused row throws RefusedByDevice.
std::optional<Product> MakeCublasProduct(DeviceContext& context, const StackedWeights& weights,
                                         std::string& what);

// MakeCublasProduct where it keeps the promise of ops.h, else MakeOwnProduct. The environment
// variable OVQ_CUDA_PRODUCTS=own skips cuBLASLt: its test takes hours under tools that make every
// launch slow. With OVQ_CUDA_PRODUCTS=cublas none of our own is used for few rows.
Product MakeProduct(DeviceContext& context, const StackedWeights& weights);

// Device memory [n, item_bytes]; fill(item, bytes) writes each item over zeros. It works on some
// items at a time, so that the host never holds a second copy of all weights.
Buffer UploadItems(DeviceContext& context, int64_t n, size_t item_bytes,
                   const std::function<void(int64_t item, std::byte* bytes)>& fill);

}  // namespace ovq::kernels::cuda
