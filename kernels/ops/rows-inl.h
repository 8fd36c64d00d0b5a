// Helpers of the row-wise CPU kernels: loads and stores of part of a vector, sums in one fixed
// order, the sigmoid. Compiled once for every instruction set.
#if defined(OVQ_KERNELS_OPS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_KERNELS_OPS_ROWS_INL_H_
#undef OVQ_KERNELS_OPS_ROWS_INL_H_
#else
#define OVQ_KERNELS_OPS_ROWS_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/common/load_wide-inl.h"
#include "kernels/common/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(d)); }

// Loads n elements, at most Lanes(); the other lanes are `fill`. Never touches the memory after
// them, as a masked load may do on older instruction sets.
HWY_INLINE V Load(const float* p, int64_t n, float fill = 0) {
  if (n == Lanes()) return hn::LoadU(d, p);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, fill), d, lanes);
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return hn::Load(d, lanes);
}

HWY_INLINE V Load(const BF16* p, int64_t n) {
  if (n == Lanes()) return LoadWide(d, p);
  BF16 lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(BF16));
  return LoadWide(d, lanes);
}

// Rounds to nearest even like RoundToBF16; the lower half is cleared, so that DemoteTo is exact.
HWY_INLINE hn::Vec<hn::Rebind<hwy::bfloat16_t, D>> ToBF16(V v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet_nan = hn::Or(bits, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto result = hn::And(hn::IfThenElse(is_nan, quiet_nan, rounded), hn::Set(du, 0xffff0000u));
  return hn::DemoteTo(hn::Rebind<hwy::bfloat16_t, D>(), hn::BitCast(d, result));
}

HWY_INLINE void StoreWide(V v, float* p) { hn::StoreU(v, d, p); }
HWY_INLINE void StoreWide(V v, BF16* p) {
  hn::StoreU(ToBF16(v), hn::Rebind<hwy::bfloat16_t, D>(), reinterpret_cast<hwy::bfloat16_t*>(p));
}

// Stores the first n elements of v, n <= Lanes().
template <class T>
HWY_INLINE void Store(V v, int64_t n, T* p) {
  if (n == Lanes()) return StoreWide(v, p);
  T lanes[hn::MaxLanes(d)];
  StoreWide(v, lanes);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// Calls fn(i, n) for elements i .. i + n of each vector. The last may have fewer, unless vectors
// have one element: compilers that check sums do not see that nothing is left over then.
template <class Fn>
HWY_INLINE void ForEachVector(int64_t n, Fn fn) {
  const int64_t lanes = Lanes();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(i, lanes);
  if constexpr (hn::MaxLanes(d) > 1) {
    if (i < n) fn(i, n - i);
  }
}

// Sums x[i] by `add`, in four sums side by side: a single one would wait for the adder's latency at
// every element, and its error bound would be four times as large.
template <class Fn>
HWY_INLINE float SumOver(const float* x, int64_t n, Fn add) {
  const int64_t lanes = Lanes();
  V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) sum[k] = add(hn::LoadU(d, x + i + k * lanes), sum[k]);
  }
  const auto rest = x + i;
  ForEachVector(n - i, [&](int64_t j, int64_t m) HWY_ATTR {
    V& to = m == lanes ? sum[0] : sum[1];
    to = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(m)), add(Load(rest + j, m), to), to);
  });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

HWY_INLINE float SumOfSquares(const float* x, int64_t n) {
  return SumOver(x, n, [](V v, V sum) HWY_ATTR { return hn::MulAdd(v, v, sum); });
}

// 1 / (1 + e^-z), with the exponential of -|z| alone: it cannot overflow.
HWY_INLINE V Sigmoid(V z) {
  const V one = hn::Set(d, 1);
  const V e = hn::Exp(d, hn::Neg(hn::Abs(z)));
  return hn::Div(hn::IfThenElse(hn::Lt(z, hn::Zero(d)), e, one), hn::Add(one, e));
}
HWY_INLINE V Silu(V z) { return hn::Mul(z, Sigmoid(z)); }

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // OVQ_KERNELS_OPS_ROWS_INL_H_
