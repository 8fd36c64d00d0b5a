// Stands for kernels/ops/matmul_cublas.cu where cuBLASLt is not: every product is CudaProduct.
#include <utility>

#include "base/check.h"
#include "kernels/ops/matmul_device.h"

namespace ovq {

struct CublasProduct::State {};

std::unique_ptr<CublasProduct> CublasProduct::Make(const StackedWeights&, DeviceContext&) {
  return nullptr;
}
CublasProduct::CublasProduct(std::unique_ptr<State> state) : state_(std::move(state)) {}
CublasProduct::~CublasProduct() = default;
size_t CublasProduct::bytes() const { return 0; }
void CublasProduct::Apply(DeviceContext&, TensorView, TensorView, bool) const {
  Check(false, "a product of cuBLASLt without cuBLASLt");
}

}  // namespace ovq
