// PrepareHeads, in place over x [n_rows, n_heads, d], |x| = sqrt(sum(x^2) + 1e-6), i < d/2, at
// a = position theta^(-2i/d), the result of every line in float32:
//   u = scale[head] x / |x|
//   x[i], x[i + d/2] = u[i] cos a - u[i + d/2] sin a, u[i + d/2] cos a + u[i] sin a
// Embed: y[row] = table[ids[row]], table [vocab, width], y [n_rows, width].
#include <cmath>

#include "kernels/ops/ops_device.h"

namespace ovq::ref {
namespace {

void UnitNorm(float* x, int n, double scale) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  const double factor = scale / std::sqrt(sum + 1e-6);
  for (int i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] * factor);
}

// x [n_heads, head_dim]. The textbook formula in long double, whose 64-bit fraction represents
// every position exactly (x86-64) and the angle to position * 2^-64.
void Rope(float* x, int n_heads, int head_dim, int64_t position, long double theta) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const long double angle = position * std::pow(theta, -2.0L * i / head_dim);
    const double c = static_cast<double>(std::cos(angle));
    const double s = static_cast<double>(std::sin(angle));
    for (float* head = x; head < x + int64_t{n_heads} * head_dim; head += head_dim) {
      const double a = head[i], b = head[i + half];
      head[i] = static_cast<float>(a * c - b * s);
      head[i + half] = static_cast<float>(b * c + a * s);
    }
  }
}

}  // namespace

void PrepareHeads(DeviceContext&, const HeadPrep& prep) {
  const auto prepare = [&](const HeadRows& heads, const float* scale) {
    const int d = heads.head_dim;
    for (int64_t row = 0; row < heads.n_rows; ++row) {
      float* x = heads.data + row * heads.row_stride;
      for (int head = 0; head < heads.n_heads && prep.unit_norm; ++head) {
        UnitNorm(x + int64_t{head} * d, d, scale ? scale[head] : 1.0);
      }
      if (prep.rope) Rope(x, heads.n_heads, d, prep.positions[row], prep.rope->theta());
      for (int64_t i = 0; i < int64_t{heads.n_heads} * d && prep.round_to_bf16; ++i) {
        x[i] = ToFloat(RoundToBF16(x[i]));
      }
    }
  };
  prepare(prep.queries, prep.beta);
  prepare(prep.keys, nullptr);
}

void Embed(DeviceContext&, TensorView table, std::span<const int32_t> ids, TensorView y) {
  const int64_t d = y.shape[1];
  float* to = y.as<float>();
  for (int32_t id : ids) {
    for (int64_t i = 0; i < d; ++i) *to++ = FloatAt(table, id * d + i);
  }
}

}  // namespace ovq::ref
