// Rope, in place over x [n_rows, n_heads, d], i < d/2, at a = position theta^(-2i/d):
//   x[i], x[i + d/2] = x[i] cos a - x[i + d/2] sin a, x[i + d/2] cos a + x[i] sin a
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>

#include "kernels/ops/ops_device.h"

namespace ovq::ref {

// The textbook formula in long double, whose 64-bit fraction represents every position exactly
// (x86-64) and the angle to position * 2^-64.
void Rope(DeviceContext&, const HeadRows& x, std::span<const int64_t> positions,
          const RopeTable& table) {
  const long double theta = table.theta();
  const int half = x.head_dim / 2;
  for (int64_t row = 0; row < x.n_rows; ++row) {
    for (int i = 0; i < half; ++i) {
      const long double exponent = -2.0L * i / x.head_dim;
      const long double angle = positions[row] * std::pow(theta, exponent);
      const double c = static_cast<double>(std::cos(angle));
      const double s = static_cast<double>(std::sin(angle));
      for (int head = 0; head < x.n_heads; ++head) {
        float* data = x.data + row * x.row_stride + int64_t{head} * x.head_dim;
        const double a = data[i];
        const double b = data[i + half];
        data[i] = static_cast<float>(a * c - b * s);
        data[i + half] = static_cast<float>(b * c + a * s);
      }
    }
  }
}

void Embed(DeviceContext&, TensorView table, std::span<const int32_t> ids, TensorView y) {
  const int64_t d = y.shape[1];
  for (size_t row = 0; row < ids.size(); ++row) {
    for (int64_t i = 0; i < d; ++i) {
      const int64_t from = ids[row] * d + i;
      float value = 0;
      if (table.dtype == DType::kF32) value = table.as<float>()[from];
      if (table.dtype == DType::kBF16) value = ToFloat(table.as<BF16>()[from]);
      if (table.dtype == DType::kF16) value = HalfToFloat(table.as<uint16_t>()[from]);
      y.as<float>()[static_cast<int64_t>(row) * d + i] = value;
    }
  }
}

}  // namespace ovq::ref
