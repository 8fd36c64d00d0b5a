#include "kernels/ops/matmul_device.h"

namespace ovq::cuda {

void MakeProduct(DeviceContext&, const StackedWeights&, Product*) { Check(false, "cuda"); }

}  // namespace ovq::cuda
