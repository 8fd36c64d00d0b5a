// MesaNet on the CPU. For one head and token, with q, k, v, lambda [d], A = h_kk and B = h_kv
// [d, d] and the scalars beta, gamma:
//   A <- gamma A + beta k k^T,  B <- gamma B + beta k v^T,  y = B^T u
//   u = 0, r = p = q, e = r.r;  cg_steps times:  m = A p + lambda (.) p,  a = e / (p.m + 1e-5),
//   u += a p,  r -= a m,  e' = r.r,  p = r + e' / (e + 1e-5) p,  e = e'
// A task is one head of a sequence, whose A and B stay in its core's cache over all tokens.
#include <algorithm>

#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/recurrent/heads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/mesa_net/mesa_net_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/mixers/recurrent/matrix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

using Padded = float[kMaxMesaHeadDim];

struct Head {
  float *h_kk, *h_kv;   // [n][stride]
  const float* lambda;  // [stride]
  int64_t n, stride;
};

// Vectors of the conjugate gradients, [stride] each.
struct Iterates {
  alignas(64) Padded u, r, p, m;
};

// m += lambda (.) p; returns p.m.
float AddDiagonal(const Head& head, Iterates& at) {
  const Floats d;
  LaneSums curvature;
  ForEachLanes(head.stride, [&](int64_t i, int part) HWY_ATTR {
    const FloatVec p = hn::Load(d, at.p + i);
    const FloatVec m = hn::MulAdd(hn::LoadU(d, head.lambda + i), p, hn::Load(d, at.m + i));
    hn::Store(m, d, at.m + i);
    curvature.Add(part, p, m);
  });
  return curvature.Total();
}

// u += a p, r -= a m; returns r.r.
float Descend(const Head& head, float a, Iterates& at) {
  const Floats d;
  const FloatVec size = hn::Set(d, a);
  LaneSums squares;
  ForEachLanes(head.stride, [&](int64_t i, int part) HWY_ATTR {
    hn::Store(hn::MulAdd(size, hn::Load(d, at.p + i), hn::Load(d, at.u + i)), d, at.u + i);
    const FloatVec r = hn::NegMulAdd(size, hn::Load(d, at.m + i), hn::Load(d, at.r + i));
    hn::Store(r, d, at.r + i);
    squares.Add(part, r, r);
  });
  return squares.Total();
}

// p = r + b p
void UpdateDirection(const Head& head, float b, Iterates& at) {
  const Floats d;
  const FloatVec direction_scale = hn::Set(d, b);
  ForEachLanes(head.stride, [&](int64_t i, int) HWY_ATTR {
    hn::Store(hn::MulAdd(direction_scale, hn::Load(d, at.p + i), hn::Load(d, at.r + i)), d,
              at.p + i);
  });
}

// Conjugate gradients from u = 0, r = p = q and m = A p.
void Solve(const Head& head, int cg_steps, Iterates& at) {
  float e = DotProduct(at.r, at.r, head.stride);
  for (int iteration = 0; iteration < cg_steps; ++iteration) {
    if (iteration > 0) {
      const RowOrder order = iteration % 2 == 0 ? RowOrder::kDown : RowOrder::kUp;
      MultiplyTransposed({head.h_kk, head.n, head.stride, order}, at.p, at.m);
    }
    const float next = Descend(head, e / (AddDiagonal(head, at) + kMesaCgEps), at);
    UpdateDirection(head, next / (e + kMesaCgEps), at);
    e = next;
  }
}

// Runs all tokens of head h of sequence s.
void AdvanceHead(const BatchSequences& seqs, const MesaArgs& args, int s, int h) {
  const MesaConfig& config = args.config;
  const int64_t n = config.head_dim, stride = config.stride(), first = int64_t{h} * n;
  std::byte* session = seqs.state[s];
  const Head head = {args.h_kk.At<float>(session, h), args.h_kv.At<float>(session, h),
                     args.lambda + h * stride, n, stride};
  Iterates at;
  alignas(64) Padded key = {}, value = {}, beta_key = {}, read;
  for (int32_t token = seqs.token_begin[s]; token < seqs.token_begin[s + 1]; ++token) {
    const int64_t gate = int64_t{token} * config.n_heads + h;
    const float *q = args.q + token * args.qk_stride + first,
                *k = args.k + token * args.qk_stride + first,
                *v = args.v + token * args.v_stride + first;
    std::fill_n(at.u, stride, 0.0f);
    std::fill(std::copy_n(q, n, at.r), at.r + stride, 0.0f);
    std::copy_n(at.r, stride, at.p);
    std::copy_n(k, n, key);
    std::copy_n(v, n, value);
    for (int64_t i = 0; i < n; ++i) beta_key[i] = args.beta[gate] * k[i];
    const float gamma = args.gamma[gate];
    UpdateAndMultiply({head.h_kk, n, stride}, {gamma, beta_key, key}, at.p, at.m);
    Solve(head, config.cg_steps, at);
    UpdateAndMultiply({head.h_kv, n, stride}, {gamma, beta_key, value}, at.u, read);
    std::copy_n(read, n, args.y + int64_t{token} * config.width() + first);
  }
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {
HWY_EXPORT(AdvanceHead);
}  // namespace

void MesaNetCpu(DeviceContext& context, const BatchSequences& seqs, const MesaArgs& args) {
  ForEachHead(context, seqs, args.config.n_heads, [&](int s, int h) {
    HWY_DYNAMIC_DISPATCH(AdvanceHead)(seqs, args, s, h);
  });
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
