// The products behind Linear.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace ovq {

// Weights [out_i, in] stacked along out, and the type their products are computed in.
struct StackedWeights {
  std::span<const TensorView> parts;
  int64_t in;
  int64_t out;
  DType compute;

  size_t row_bytes() const { return static_cast<size_t>(in) * DTypeBytes(compute); }
};

// What a ProductChoice calls such weights.
inline const char* WeightsName(DType compute) { return compute == DType::kF32 ? "f32" : "bf16"; }

// Row `row` of the stack. dst [in] of the compute type.
void CopyRow(const StackedWeights& weights, int64_t row, void* dst);

// Weights rounded as WeightType::kInt8 says: q(w_o) and r(w_o).
struct Int8Weights {
  int64_t in, out;
  std::vector<int8_t> values;  // [out, in]
  std::vector<float> scales;   // [out]
};

Int8Weights RoundToInt8(const StackedWeights& weights);

// Activations [n, in] of the compute type, in [-1, 1), to test a product with before it is used.
std::vector<std::byte> TestRows(int64_t n, int64_t in, DType compute);

}  // namespace ovq

namespace ovq::ref {

// Sums in float64, in the order of the inputs.
Product MakeProduct(DeviceContext& context, const StackedWeights& weights);
// WeightType::kInt8, in plain loops over int64.
Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights);

}  // namespace ovq::ref

namespace ovq::cpu {

// Plain SIMD: every element of y is one chain of fused multiply-adds in float32 over the inputs in
// their order (a bfloat16 product is exact in float32), whatever the rows and threads. For machines
// where oneDNN's sums depend on the number of rows or where it has no bfloat16.
Product MakeSimdProduct(const StackedWeights& weights);

// oneDNN's blocked ("brgemm") matrix product. None where oneDNN would use another implementation,
// or where this one fails the test that a row's bits are the same for any number of rows.
std::optional<Product> MakeOneDnnProduct(DeviceContext& context, const StackedWeights& weights);

// Of a ProductChoice.
inline constexpr const char* kOwnProductReason =
    "no product of oneDNN gives a row the same bits for any number of rows";

// oneDNN's where it keeps the promise of ops.h, else plain SIMD.
Product MakeProduct(DeviceContext& context, const StackedWeights& weights);

// sums[n, out] = x[n, in] values^T, of unsigned bytes x, exactly.
struct Int8Sums {
  size_t bytes = 0;  // of the packed weights
  std::function<void(DeviceContext& context, const uint8_t* x, int64_t n, int32_t* sums)> apply;
};

// In float32: products of a byte and an int8 are below 2^15, so 512 of them add up exactly.
Int8Sums MakeSimdSums(const Int8Weights& weights);
// oneDNN's, on AMX or VNNI. None where it has neither, or where its sums turn out not to be exact.
std::optional<Int8Sums> MakeOneDnnSums(DeviceContext& context, const Int8Weights& weights);

// WeightType::kInt8 around one of the two.
Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights);
// Around these sums of the same weights.
Product WithSums(const Int8Weights& weights, Int8Sums sums);

}  // namespace ovq::cpu

namespace ovq::cuda {

// Kernels of our own. Segments of 128 inputs are summed on their own, each in one fixed order, and
// added from the first to the last, whether by one block after another or by several at once: so
// few rows (which read the weights once, spread over many blocks) and many get the same bits.
Product MakeOwnProduct(DeviceContext& context, const StackedWeights& weights);

// int8 weights times bfloat16 rows, x W^T with W = q(w_o) and each sum times r(w_o), by the same
// kernels. The compute type is kBF16.
Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights);

// One algorithm of cuBLASLt for every number of rows. None if no algorithm passes the test that a
// row's bits are the same for any number of rows. `what`: the algorithm, or why there is none.
std::optional<Product> MakeCublasProduct(DeviceContext& context, const StackedWeights& weights,
                                         std::string& what);

// cuBLASLt's where it keeps the promise of ops.h, else our own. All our own with the environment
// variable OVQ_CUDA_PRODUCTS=own: under tools that make every launch slow the test takes hours.
Product MakeProduct(DeviceContext& context, const StackedWeights& weights);

// Device memory [n, item_bytes], each item written by fill(item, its bytes, zero at first). Some
// items at a time, so that the host never holds a second copy of all weights.
Buffer UploadItems(DeviceContext& context, int64_t n, size_t item_bytes,
                   const std::function<void(int64_t item, std::byte* bytes)>& fill);

}  // namespace ovq::cuda
