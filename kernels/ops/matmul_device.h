// The products behind Linear. Each keeps its own packed copy of the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "kernels/ops/ops.h"

namespace ovq {

// Weights [out_i, in] stacked along out, and the type their products are computed in.
struct StackedWeights {
  std::span<const TensorView> parts;
  int64_t in;
  int64_t out;
  DType compute;
};

// Row `row` of the stack, rounded to the compute type. dst [in] of T = float or BF16.
template <class T>
void CopyRow(const StackedWeights& weights, int64_t row, T* dst);

// Sums in float64, in the order of the inputs.
class ReferenceProduct {
 public:
  explicit ReferenceProduct(const StackedWeights& weights);
  size_t bytes() const { return weights_.size() * sizeof(float); }
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const;

 private:
  int64_t in_, out_;
  std::vector<float> weights_;  // [out, in], rounded to the compute type
};

// Plain SIMD: every element of y is one chain of fused multiply-adds in float32 over the inputs in
// their order (a bfloat16 product is exact in float32), whatever the rows and threads. For machines
// where oneDNN's sums depend on the number of rows or where it has no bfloat16.
class SimdProduct {
 public:
  explicit SimdProduct(const StackedWeights& weights);
  size_t bytes() const { return bytes_; }
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const;

 private:
  struct AlignedDelete {
    void operator()(std::byte* p) const;
  };
  int64_t in_, out_;
  DType compute_;
  size_t bytes_;
  std::unique_ptr<std::byte[], AlignedDelete> weights_;  // [panels, in, panel columns]
};

// oneDNN's blocked ("brgemm") matrix product.
class OneDnnProduct {
 public:
  // Null where oneDNN would use another implementation, or where this one fails the test that a
  // row's bits are the same for any number of rows.
  static std::unique_ptr<OneDnnProduct> Make(const StackedWeights& weights, DeviceContext& context);
  ~OneDnnProduct();
  size_t bytes() const;
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const;

 private:
  struct State;  // of oneDNN's types
  explicit OneDnnProduct(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

#ifdef WITH_CUDA

// Kernels of our own. Segments of kSegment inputs are summed on their own, each in one fixed order,
// and added from the first to the last, whether by one block after another or by several at once:
// so few rows (which read the weights once, spread over many blocks) and many get the same bits.
class CudaProduct {
 public:
  static constexpr int kSegment = 128;
  CudaProduct(const StackedWeights& weights, DeviceContext& context);
  size_t bytes() const { return weights_.bytes(); }
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const;

 private:
  int64_t in_, out_;
  DType compute_;
  Buffer weights_;  // packed as kernels/ops/cuda/product_bf16.cuh and product_f32.cuh say
};

// One algorithm of cuBLASLt for every number of rows.
class CublasProduct {
 public:
  // Null if no algorithm passes the test that a row's bits are the same for any number of rows.
  static std::unique_ptr<CublasProduct> Make(const StackedWeights& weights, DeviceContext& context);
  ~CublasProduct();
  size_t bytes() const;
  void Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const;

 private:
  struct State;  // of cuBLASLt's types
  explicit CublasProduct(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

using Product = std::variant<std::unique_ptr<ReferenceProduct>, std::unique_ptr<SimdProduct>,
                             std::unique_ptr<OneDnnProduct>, std::unique_ptr<CudaProduct>,
                             std::unique_ptr<CublasProduct>>;

#else

using Product = std::variant<std::unique_ptr<ReferenceProduct>, std::unique_ptr<SimdProduct>,
                             std::unique_ptr<OneDnnProduct>>;

#endif

}  // namespace ovq

namespace ovq::ref {
void MakeProduct(DeviceContext& context, const StackedWeights& weights, Product* product);
}  // namespace ovq::ref

namespace ovq::cpu {
// OneDnnProduct where it keeps the promise of ops.h, else SimdProduct.
void MakeProduct(DeviceContext& context, const StackedWeights& weights, Product* product);
}  // namespace ovq::cpu

namespace ovq::cuda {
// CublasProduct where it keeps the promise of ops.h, else CudaProduct.
void MakeProduct(DeviceContext& context, const StackedWeights& weights, Product* product);
}  // namespace ovq::cuda
