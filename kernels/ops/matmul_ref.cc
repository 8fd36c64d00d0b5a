// y[n, out] (+)= x[n, in] W^T, W [out, in], summed in float64 in the order of the inputs.
#include <memory>
#include <vector>

#include "kernels/ops/matmul_device.h"

namespace ovq::ref {

Product MakeProduct(DeviceContext&, const StackedWeights& weights) {
  const int64_t in = weights.in, out = weights.out;
  const auto packed = std::make_shared<std::vector<std::byte>>(out * weights.row_bytes());
  const TensorView w = {packed->data(), weights.compute, {out, in}};
  for (int64_t o = 0; o < out; ++o) CopyRow(weights, o, packed->data() + o * weights.row_bytes());
  const auto apply = [=](DeviceContext&, TensorView x, TensorView y, bool accumulate) {
    (void)packed;  // which w reads
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      for (int64_t o = 0; o < out; ++o) {
        float& target = y.as<float>()[row * out + o];
        double sum = accumulate ? target : 0.0;
        for (int64_t i = 0; i < in; ++i) {
          sum += double{FloatAt(x, row * in + i)} * FloatAt(w, o * in + i);
        }
        target = static_cast<float>(sum);
      }
    }
  };
  return {packed->size(), apply};
}

}  // namespace ovq::ref
