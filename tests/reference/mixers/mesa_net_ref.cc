// Reference implementation of MesaNet (README.md) in double; the state is rounded to float32 after
// every token.
#include <vector>

#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/recurrent/heads.h"
#include "tests/reference/reference_of.h"
#include "tests/reference/vectors.h"

namespace ovq::kernels {
namespace {

// x + factor y
Vector Sum(const Vector& x, double factor, const Vector& y) {
  Vector sum = x;
  for (size_t i = 0; i < x.size(); ++i) sum[i] += factor * y[i];
  return sum;
}

// Matrix of one head, stored in float32.
struct Matrix {
  float* data;
  size_t n, stride;

  void Update(double gamma, double beta, const Vector& left, const Vector& right) const {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        float& element = data[i * stride + j];
        element = static_cast<float>(gamma * element + beta * left[i] * right[j]);
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
  for (int iteration = 0; iteration < cg_steps; ++iteration) {
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

void AdvanceToken(const MesaArgs& args, std::byte* session, int h, int64_t token) {
  const auto n = static_cast<size_t>(args.config.head_dim);
  const auto stride = static_cast<size_t>(args.config.stride());
  const auto vector = [&](const float* of, int64_t token_stride) {
    const float* begin = of + token * token_stride + int64_t{h} * args.config.head_dim;
    return Vector(begin, begin + n);
  };
  const Vector q = vector(args.q, args.qk_stride), k = vector(args.k, args.qk_stride),
               v = vector(args.v, args.v_stride);
  const Matrix a = {args.h_kk.At<float>(session, h), n, stride};
  const Matrix b = {args.h_kv.At<float>(session, h), n, stride};
  const int64_t gate = token * args.config.n_heads + h;
  a.Update(args.gamma[gate], args.beta[gate], k, k);
  b.Update(args.gamma[gate], args.beta[gate], k, v);
  const float* lambda = args.lambda + static_cast<size_t>(h) * stride;
  const Vector y = b.TransposedTimes(Solve(a, lambda, q, args.config.cg_steps));
  float* out = args.y + token * args.config.width() + int64_t{h} * args.config.head_dim;
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(y[i]);
}

}  // namespace

void MesaNetRef(DeviceContext& context, const BatchSequences& seqs, const MesaArgs& args) {
  ForEachHead(context, seqs, args.config.n_heads, [&](int s, int h) {
    for (int64_t token = seqs.token_begin[s]; token < seqs.token_begin[s + 1]; ++token) {
      AdvanceToken(args, seqs.state[s], h, token);
    }
  });
}

const ReferenceOf<MesaNetCpu> kMesaNet = MesaNetRef;

}  // namespace ovq::kernels
