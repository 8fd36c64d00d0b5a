// Stands for kernels/ops/matmul_cublas.cu where cuBLASLt is not: every product is our own.
#include "kernels/ops/matmul_device.h"

namespace ovq::cuda {

std::optional<Product> MakeCublasProduct(DeviceContext&, const StackedWeights&, std::string& what) {
  what = "the host executor has no cuBLASLt";
  return std::nullopt;
}

}  // namespace ovq::cuda
