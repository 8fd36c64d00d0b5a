#include "kernels/ops/ops_device.h"

namespace ovq::cuda {

void RmsNorm(DeviceContext&, TensorView, TensorView, float, TensorView, std::span<const int32_t>) {
  Check(false, "cuda");
}
void UnitNorm(DeviceContext&, const HeadRows&, const float*) { Check(false, "cuda"); }
void SwiGlu(DeviceContext&, TensorView, TensorView) { Check(false, "cuda"); }
void LogSumExp(DeviceContext&, TensorView, float*) { Check(false, "cuda"); }
void Rope(DeviceContext&, const HeadRows&, std::span<const int64_t>, const RopeTable&) {
  Check(false, "cuda");
}
void PrepareHeads(DeviceContext&, const HeadPrep&) { Check(false, "cuda"); }
void Embed(DeviceContext&, TensorView, std::span<const int32_t>, TensorView) {
  Check(false, "cuda");
}

}  // namespace ovq::cuda
