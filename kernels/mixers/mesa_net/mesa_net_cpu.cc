// MesaNet on the CPU. Of one head and token, q, k, v, lambda [d], A, B [d, d], beta, gamma:
//   A <- gamma A + beta k k^T,  B <- gamma B + beta k v^T,  y = B^T u
//   u = 0, r = p = q, e = r.r;  cg_steps times:  m = A p + lambda (.) p,  a = e / (p.m + 1e-5),
//   u += a p,  r -= a m,  e' = r.r,  p = r + e' / (e + 1e-5) p,  e = e'
// A task is a head of a sequence, whose A and B stay in its core's cache for all rows.
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
namespace ovq::HWY_NAMESPACE {
namespace {

using Padded = float[kMaxMesaHeadDim];

struct Head {
  float *key_keys, *key_values;  // [n][stride]
  const float* lambda;           // [stride]
  int64_t n, stride;
};

// The vectors of the iteration, [stride].
struct Iterates {
  alignas(64) Padded u, r, p, m;
};

// m += lambda (.) p; the result is p.m.
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

// u += a p, r -= a m; the result is r.r.
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
void Turn(const Head& head, float b, Iterates& at) {
  const Floats d;
  const FloatVec kept = hn::Set(d, b);
  ForEachLanes(head.stride, [&](int64_t i, int) HWY_ATTR {
    hn::Store(hn::MulAdd(kept, hn::Load(d, at.p + i), hn::Load(d, at.r + i)), d, at.p + i);
  });
}

// From u = 0, r = p = q and m = A p on.
void Solve(const Head& head, int cg_steps, Iterates& at) {
  float e = DotOf(at.r, at.r, head.stride);
  for (int step = 0; step < cg_steps; ++step) {
    if (step > 0) {
      const RowOrder order = step % 2 == 0 ? RowOrder::kDown : RowOrder::kUp;
      MultiplyTransposed({head.key_keys, head.n, head.stride, order}, at.p, at.m);
    }
    const float next = Descend(head, e / (AddDiagonal(head, at) + kMesaStepEps), at);
    Turn(head, next / (e + kMesaStepEps), at);
    e = next;
  }
}

// All rows of a head of a sequence.
void PassRows(const MesaStep& step, int s, int h) {
  const MesaConfig& config = step.config;
  const int64_t n = config.head_dim, stride = config.stride(), first = int64_t{h} * n;
  std::byte* session = step.seqs.state[s];
  const Head head = {step.key_keys.At<float>(session, h), step.key_values.At<float>(session, h),
                     step.lambda + h * stride, n, stride};
  Iterates at;
  alignas(64) Padded key = {}, value = {}, written = {}, read;
  for (int32_t row = step.seqs.row_begin[s]; row < step.seqs.row_begin[s + 1]; ++row) {
    const int64_t gate = int64_t{row} * config.n_heads + h;
    const float *q = step.q + row * step.qk_stride() + first,
                *k = step.k + row * step.qk_stride() + first,
                *v = step.v + row * step.v_stride + first;
    std::fill_n(at.u, stride, 0.0f);
    std::fill(std::copy_n(q, n, at.r), at.r + stride, 0.0f);
    std::copy_n(at.r, stride, at.p);
    std::copy_n(k, n, key);
    std::copy_n(v, n, value);
    for (int64_t i = 0; i < n; ++i) written[i] = step.write[gate] * k[i];
    const float keep = step.keep[gate];
    UpdateAndMultiply({head.key_keys, n, stride}, {keep, written, key}, at.p, at.m);
    Solve(head, config.cg_steps, at);
    UpdateAndMultiply({head.key_values, n, stride}, {keep, written, value}, at.u, read);
    std::copy_n(read, n, step.y + int64_t{row} * config.width() + first);
  }
}

}  // namespace
}  // namespace ovq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq {
namespace {
HWY_EXPORT(PassRows);
}  // namespace

void MesaNetCpu(DeviceContext& context, const MesaStep& step) {
  ForEachHead(context, step.seqs, step.config.n_heads, [&](int s, int h) {
    HWY_DYNAMIC_DISPATCH(PassRows)(step, s, h);
  });
}

}  // namespace ovq
#endif  // HWY_ONCE
