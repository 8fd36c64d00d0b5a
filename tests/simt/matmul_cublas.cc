// Replaces kernels/ops/matmul_cublas.cu on the host, where there is no cuBLASLt: MakeCublasProduct
// gives none.
#include "kernels/ops/matmul_device.h"

namespace ovq::kernels::cuda {

std::optional<Product> MakeCublasProduct(DeviceContext&, const StackedWeights&, std::string& what) {
  what = "the host executor has no cuBLASLt";
  return std::nullopt;
}

}  // namespace ovq::kernels::cuda
