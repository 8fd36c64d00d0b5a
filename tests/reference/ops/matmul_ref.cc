// y[n, out] (+)= x[n, in] W^T, W [out, in], summed in float64 in the order of the inputs, and
// WeightType::kInt8 in integers.
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/ops/matmul_device.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

// A row as integers times a scale.
struct Rounded {
  std::vector<int64_t> values;
  float scale = 0;
};
Rounded RoundRow(const TensorView& tensor, int64_t first, int64_t n) {
  Rounded row{std::vector<int64_t>(static_cast<size_t>(n), 0)};
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float value = FloatAt(tensor, first + i);
    finite = finite && std::isfinite(value);
    if (std::fabs(value) > largest) largest = std::fabs(value);
  }
  if (!finite) {
    row.scale = std::numeric_limits<float>::quiet_NaN();
  } else if (largest >= 0x1p-100f) {
    row.scale = largest / 127;
    const float factor = 127 / largest;
    for (int64_t i = 0; i < n; ++i) {
      row.values[i] = std::lrint(FloatAt(tensor, first + i) * factor);
    }
  }
  return row;
}

}  // namespace

Product MakeProduct(DeviceContext&, const StackedWeights& weights) {
  const int64_t in = weights.in, out = weights.out;
  const auto packed = std::make_shared<std::vector<std::byte>>(out * weights.row_bytes());
  const TensorView w = {packed->data(), weights.compute, {out, in}};
  for (int64_t o = 0; o < out; ++o) CopyRow(weights, o, packed->data() + o * weights.row_bytes());
  const auto apply = [=](DeviceContext&, TensorView x, TensorView y, bool accumulate) {
    (void)packed;  // w points into it
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

Product MakeInt8Product(DeviceContext&, const StackedWeights& weights) {
  const auto rows = std::make_shared<std::vector<Rounded>>();
  for (const TensorView& part : weights.parts) {
    for (int64_t o = 0; o < part.shape[0]; ++o) {
      rows->push_back(RoundRow(part, o * weights.in, weights.in));
    }
  }
  const int64_t in = weights.in, out = weights.out;
  const auto apply = [=](DeviceContext&, TensorView x, TensorView y, bool accumulate) {
    for (int64_t i = 0; i < x.shape[0]; ++i) {
      const Rounded row = RoundRow(x, i * in, in);
      for (int64_t o = 0; o < out; ++o) {
        const Rounded& w = (*rows)[o];
        int64_t sum = 0;
        for (size_t k = 0; k < row.values.size(); ++k) sum += row.values[k] * w.values[k];
        const float product = static_cast<float>(sum) * row.scale * w.scale;
        float& target = y.as<float>()[i * out + o];
        target = accumulate ? target + product : product;
      }
    }
  };
  return {static_cast<size_t>(out) * (static_cast<size_t>(in) + sizeof(float)), apply};
}

const ReferenceOf<cpu::MakeProduct> kMakeProduct = MakeProduct;
const ReferenceOf<cpu::MakeInt8Product> kMakeInt8Product = MakeInt8Product;

}  // namespace ovq::kernels::ref
