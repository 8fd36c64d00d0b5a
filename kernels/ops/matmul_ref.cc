// y[n, out] (+)= x[n, in] W^T, W [out, in], summed in float64 in the order of the inputs.
#include "kernels/ops/matmul_device.h"

namespace ovq {

ReferenceProduct::ReferenceProduct(const StackedWeights& weights)
    : in_(weights.in),
      out_(weights.out),
      weights_(static_cast<size_t>(weights.in) * static_cast<size_t>(weights.out)) {
  for (int64_t row = 0; row < out_; ++row) CopyRow(weights, row, weights_.data() + row * in_);
}

void ReferenceProduct::Apply(DeviceContext&, TensorView x, TensorView y, bool accumulate) const {
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    for (int64_t o = 0; o < out_; ++o) {
      float& target = y.as<float>()[row * out_ + o];
      double sum = accumulate ? target : 0.0;
      for (int64_t i = 0; i < in_; ++i) {
        const int64_t at = row * in_ + i;
        const float factor = x.dtype == DType::kF32 ? x.as<float>()[at] : ToFloat(x.as<BF16>()[at]);
        sum += double{factor} * weights_[static_cast<size_t>(o * in_ + i)];
      }
      target = static_cast<float>(sum);
    }
  }
}

namespace ref {

void MakeProduct(DeviceContext&, const StackedWeights& weights, Product* product) {
  *product = std::make_unique<ReferenceProduct>(weights);
}

}  // namespace ref
}  // namespace ovq
