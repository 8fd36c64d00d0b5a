// RmsNorm    y[i] = r / sqrt(mean(r^2) + eps) * weight, r = x[rows[i]]; x [n, d], y [rows, d]
// UnitNorm   x = x / sqrt(sum(x^2) + 1e-6) * scale, in place; x [n]
// SwiGlu     y = gate / (1 + e^-gate) * up; gate_up [n, 2f] = [gate | up], y [n, f]
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x); x [n, m], out [n]
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/common/highway_targets.h"
#include "kernels/ops/ops_device.h"
#include "kernels/ops/parallel_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ops/norm_act_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(d)); }

// Loads n elements, at most Lanes(); the other lanes are `fill`. Never touches the memory after
// them, as a masked load may do on older instruction sets.
HWY_INLINE V Load(const float* p, int64_t n, float fill = 0) {
  if (n == Lanes()) return hn::LoadU(d, p);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(d, fill), d, lanes);
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return hn::Load(d, lanes);
}

// Rounds to nearest even like RoundToBF16; the lower half is cleared, so that DemoteTo is exact.
hn::Vec<hn::Rebind<hwy::bfloat16_t, D>> ToBF16(V v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet_nan = hn::Or(bits, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  const auto result = hn::And(hn::IfThenElse(is_nan, quiet_nan, rounded), hn::Set(du, 0xffff0000u));
  return hn::DemoteTo(hn::Rebind<hwy::bfloat16_t, D>(), hn::BitCast(d, result));
}

void StoreWide(V v, float* p) { hn::StoreU(v, d, p); }
void StoreWide(V v, BF16* p) {
  hn::StoreU(ToBF16(v), hn::Rebind<hwy::bfloat16_t, D>(), reinterpret_cast<hwy::bfloat16_t*>(p));
}

// The same the other way.
template <class T>
HWY_INLINE void Store(V v, int64_t n, T* p) {
  if (n == Lanes()) return StoreWide(v, p);
  T lanes[hn::MaxLanes(d)];
  StoreWide(v, lanes);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// fn(i, n) for elements i .. i + n of each vector, of which the last may have fewer.
template <class Fn>
HWY_INLINE void ForEachVector(int64_t n, Fn fn) {
  const int64_t lanes = Lanes();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) fn(i, lanes);
  if (i < n) fn(i, n - i);
}

// Four sums side by side: a single one would wait for the adder's latency at every element, and its
// bound on the error would be four times as large.
float SumOfSquares(const float* x, int64_t n) {
  const int64_t lanes = Lanes();
  V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) {
      const V v = hn::LoadU(d, x + i + k * lanes);
      sum[k] = hn::MulAdd(v, v, sum[k]);
    }
  }
  ForEachVector(n - i, [&](int64_t j, int64_t m) {
    const V v = Load(x + i + j, m);
    V& to = m == lanes ? sum[0] : sum[1];
    to = hn::MulAdd(v, v, to);
  });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

template <class T>
void RmsNormRow(const float* x, TensorView weight, float eps, T* y) {
  const int64_t n = weight.shape[0];
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const V factor = hn::Set(d, 1.0f / std::sqrt(mean + eps));
  const float* w = weight.as<float>();
  ForEachVector(n, [&](int64_t i, int64_t m) {
    Store(hn::Mul(hn::Mul(Load(x + i, m), factor), Load(w + i, m)), m, y + i);
  });
}

// Row `row` of y.
void RmsNorm(const float* x, TensorView weight, float eps, TensorView y, int64_t row) {
  const int64_t at = row * y.shape[1];
  if (y.dtype == DType::kF32) return RmsNormRow(x, weight, eps, y.as<float>() + at);
  RmsNormRow(x, weight, eps, y.as<BF16>() + at);
}

void UnitNorm(float* x, int n, float scale) {
  const V factor = hn::Set(d, scale / std::sqrt(SumOfSquares(x, n) + 1e-6f));
  ForEachVector(n, [&](int64_t i, int64_t m) { Store(hn::Mul(Load(x + i, m), factor), m, x + i); });
}

// gate * up / (1 + e^-gate), with the exponential of -|gate| alone: it cannot overflow.
HWY_INLINE V Silu(V gate, V up) {
  const V one = hn::Set(d, 1);
  const V e = hn::Exp(d, hn::Neg(hn::Abs(gate)));
  const V numerator = hn::IfThenElse(hn::Lt(gate, hn::Zero(d)), e, one);
  return hn::Mul(hn::Mul(gate, hn::Div(numerator, hn::Add(one, e))), up);
}

template <class T>
void SwiGluRow(const float* gate, int64_t n, T* y) {
  ForEachVector(n, [&](int64_t i, int64_t m) {
    Store(Silu(Load(gate + i, m), Load(gate + n + i, m)), m, y + i);
  });
}

void SwiGlu(TensorView gate_up, TensorView y, int64_t row) {
  const int64_t n = y.shape[1];
  const float* gate = gate_up.as<float>() + row * 2 * n;
  if (y.dtype == DType::kF32) return SwiGluRow(gate, n, y.as<float>() + row * n);
  SwiGluRow(gate, n, y.as<BF16>() + row * n);
}

float LogSumExp(const float* x, int64_t n) {
  const int64_t lanes = Lanes();
  V highest = hn::Set(d, kLowest);
  ForEachVector(n,
                [&](int64_t i, int64_t m) { highest = hn::Max(highest, Load(x + i, m, kLowest)); });
  const float max = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (std::isinf(max)) return max;  // nothing to subtract it from

  const V shift = hn::Set(d, max);
  V sum[2] = {hn::Zero(d), hn::Zero(d)};
  const auto add = [&](V& to, V v) { to = hn::Add(to, hn::Exp(d, hn::Sub(v, shift))); };
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    for (int k = 0; k < 2; ++k) add(sum[k], hn::LoadU(d, x + i + k * lanes));
  }
  ForEachVector(n - i, [&](int64_t j, int64_t m) { add(sum[0], Load(x + i + j, m, kLowest)); });
  return max + std::log(hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[0], sum[1]))));
}

}  // namespace
}  // namespace ovq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq {
namespace {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(UnitNorm);
HWY_EXPORT(SwiGlu);
HWY_EXPORT(LogSumExp);

constexpr int64_t kExpWork = 8;  // multiply-adds that take as long as one exponential, about

}  // namespace

namespace cpu {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows) {
  const int64_t n = x.shape[1];
  ParallelRows(context, y.shape[0], 2 * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = x.as<float>() + (rows.empty() ? row : rows[row]) * n;
      HWY_DYNAMIC_DISPATCH(RmsNorm)(in, weight, eps, y, row);
    }
  });
}

void UnitNorm(float* x, int n, float scale) { HWY_DYNAMIC_DISPATCH(UnitNorm)(x, n, scale); }

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  ParallelRows(context, y.shape[0], kExpWork * y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(SwiGlu)(gate_up, y, row);
  });
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], kExpWork * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      out[row] = HWY_DYNAMIC_DISPATCH(LogSumExp)(x.as<float>() + row * n, n);
    }
  });
}

}  // namespace cpu
}  // namespace ovq
#endif  // HWY_ONCE
