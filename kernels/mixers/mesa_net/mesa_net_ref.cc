// MesaNet as README.md has it, in double; the state is rounded to float32 after every token.
#include <vector>

#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/recurrent/heads.h"

namespace ovq {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// x + factor y
Vector Sum(const Vector& x, double factor, const Vector& y) {
  Vector sum = x;
  for (size_t i = 0; i < x.size(); ++i) sum[i] += factor * y[i];
  return sum;
}

// M of a head, kept in float32.
struct Matrix {
  float* data;
  size_t n, stride;

  void Update(double keep, double write, const Vector& left, const Vector& right) const {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        float& element = data[i * stride + j];
        element = static_cast<float>(keep * element + write * left[i] * right[j]);
      }
    }
  }
  Vector TransposedTimes(const Vector& x) const {
    Vector product(n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) product[j] += data[i * stride + j] * x[i];
    }
    return product;
  }
};

Vector Solve(const Matrix& a, const float* lambda, const Vector& q, int cg_steps) {
  constexpr double kEps = 1e-5;
  Vector u(q.size(), 0.0), r = q, p = q;
  double e = Dot(r, r);
  for (int step = 0; step < cg_steps; ++step) {
    Vector m = a.TransposedTimes(p);
    for (size_t i = 0; i < m.size(); ++i) m[i] += lambda[i] * p[i];
    const double size = e / (Dot(p, m) + kEps);
    u = Sum(u, size, p);
    r = Sum(r, -size, m);
    const double next = Dot(r, r);
    p = Sum(r, next / (e + kEps), p);
    e = next;
  }
  return u;
}

void PassToken(const MesaStep& step, int s, int h, int64_t row) {
  const auto n = static_cast<size_t>(step.config.head_dim);
  const auto stride = static_cast<size_t>(step.config.stride());
  const auto vector = [&](const float* of, int64_t row_stride) {
    const float* begin = of + row * row_stride + int64_t{h} * step.config.head_dim;
    return Vector(begin, begin + n);
  };
  const Vector q = vector(step.q, step.qk_stride()), k = vector(step.k, step.qk_stride()),
               v = vector(step.v, step.v_stride);
  std::byte* session = step.seqs.state[s];
  const Matrix a = {step.key_keys.At<float>(session, h), n, stride};
  const Matrix b = {step.key_values.At<float>(session, h), n, stride};
  const int64_t gate = row * step.config.n_heads + h;
  a.Update(step.keep[gate], step.write[gate], k, k);
  b.Update(step.keep[gate], step.write[gate], k, v);
  const float* lambda = step.lambda + static_cast<size_t>(h) * stride;
  const Vector y = b.TransposedTimes(Solve(a, lambda, q, step.config.cg_steps));
  float* out = step.y + row * step.config.width() + int64_t{h} * step.config.head_dim;
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(y[i]);
}

}  // namespace

void MesaNetRef(DeviceContext& context, const MesaStep& step) {
  ForEachHead(context, step.seqs, step.config.n_heads, [&](int s, int h) {
    for (int64_t row = step.seqs.row_begin[s]; row < step.seqs.row_begin[s + 1]; ++row) {
      PassToken(step, s, h, row);
    }
  });
}

}  // namespace ovq
