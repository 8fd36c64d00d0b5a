// RmsNorm    y[i] = r / sqrt(mean(r^2) + eps) * weight, r = x[rows[i]]; x [n, d], y [rows, d]
// UnitNorm   x = x / sqrt(sum(x^2) + 1e-6) * scale[head], in place; x [n, heads, head_dim]
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

// Loads n < Lanes elements; the other lanes are `fill`. Never touches the memory after them, as a
// masked load may do on older instruction sets.
V LoadTail(const float* p, int64_t n, float fill) {
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

template <class T>
void StoreTail(V v, int64_t n, T* p) {
  T lanes[hn::MaxLanes(d)];
  StoreWide(v, lanes);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// Four sums side by side: a single one would wait for the adder's latency at every element, and its
// bound on the error would be four times as large.
float SumOfSquares(const float* x, int64_t n) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    for (int k = 0; k < 4; ++k) {
      const V v = hn::LoadU(d, x + i + k * lanes);
      sum[k] = hn::MulAdd(v, v, sum[k]);
    }
  }
  for (; i + lanes <= n; i += lanes) {
    const V v = hn::LoadU(d, x + i);
    sum[0] = hn::MulAdd(v, v, sum[0]);
  }
  if (i < n) {
    const V v = LoadTail(x + i, n - i, 0);
    sum[1] = hn::MulAdd(v, v, sum[1]);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]))));
}

template <class T>
void RmsNormRow(const float* x, const float* weight, int64_t n, float eps, T* y) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const V factor = hn::Set(d, 1.0f / std::sqrt(mean + eps));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V scaled = hn::Mul(hn::LoadU(d, x + i), factor);
    StoreWide(hn::Mul(scaled, hn::LoadU(d, weight + i)), y + i);
  }
  if (i < n) {
    const V scaled = hn::Mul(LoadTail(x + i, n - i, 0), factor);
    StoreTail(hn::Mul(scaled, LoadTail(weight + i, n - i, 0)), n - i, y + i);
  }
}
void RmsNormF32(const float* x, const float* weight, int64_t n, float eps, float* y) {
  RmsNormRow(x, weight, n, eps, y);
}
void RmsNormBF16(const float* x, const float* weight, int64_t n, float eps, BF16* y) {
  RmsNormRow(x, weight, n, eps, y);
}

void UnitNormHead(float* x, int n, float scale) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V factor = hn::Set(d, scale / std::sqrt(SumOfSquares(x, n) + 1e-6f));
  int i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factor), d, x + i);
  if (i < n) StoreTail(hn::Mul(LoadTail(x + i, n - i, 0), factor), n - i, x + i);
}

// gate * up / (1 + e^-gate), with the exponential of -|gate| alone: it cannot overflow.
HWY_INLINE V Silu(V gate, V up) {
  const V one = hn::Set(d, 1);
  const V e = hn::Exp(d, hn::Neg(hn::Abs(gate)));
  const V numerator = hn::IfThenElse(hn::Lt(gate, hn::Zero(d)), e, one);
  return hn::Mul(hn::Mul(gate, hn::Div(numerator, hn::Add(one, e))), up);
}

template <class T>
void SwiGluRows(const float* gate, int64_t n_rows, int64_t n, T* y) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < n_rows; ++row, gate += 2 * n, y += n) {
    const float* up = gate + n;
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      StoreWide(Silu(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), y + i);
    }
    if (i < n) {
      StoreTail(Silu(LoadTail(gate + i, n - i, 0), LoadTail(up + i, n - i, 0)), n - i, y + i);
    }
  }
}
void SwiGluF32(const float* gate_up, int64_t n_rows, int64_t n, float* y) {
  SwiGluRows(gate_up, n_rows, n, y);
}
void SwiGluBF16(const float* gate_up, int64_t n_rows, int64_t n, BF16* y) {
  SwiGluRows(gate_up, n_rows, n, y);
}

float LogSumExpRow(const float* x, int64_t n) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V highest = hn::Set(d, kLowest);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) highest = hn::Max(highest, hn::LoadU(d, x + i));
  if (i < n) highest = hn::Max(highest, LoadTail(x + i, n - i, kLowest));
  const float max = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (std::isinf(max)) return max;  // nothing to subtract it from

  const V shift = hn::Set(d, max);
  V sum[2] = {hn::Zero(d), hn::Zero(d)};
  for (i = 0; i + 2 * lanes <= n; i += 2 * lanes) {
    for (int k = 0; k < 2; ++k) {
      const V v = hn::LoadU(d, x + i + k * lanes);
      sum[k] = hn::Add(sum[k], hn::Exp(d, hn::Sub(v, shift)));
    }
  }
  for (; i < n; i += lanes) {
    const V v = i + lanes <= n ? hn::LoadU(d, x + i) : LoadTail(x + i, n - i, kLowest);
    sum[0] = hn::Add(sum[0], hn::Exp(d, hn::Sub(v, shift)));
  }
  return max + std::log(hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[0], sum[1]))));
}

}  // namespace
}  // namespace ovq::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq {
namespace {

HWY_EXPORT(RmsNormF32);
HWY_EXPORT(RmsNormBF16);
HWY_EXPORT(UnitNormHead);
HWY_EXPORT(SwiGluF32);
HWY_EXPORT(SwiGluBF16);
HWY_EXPORT(LogSumExpRow);

constexpr int64_t kExpWork = 8;  // multiply-adds that take as long as one exponential, about

}  // namespace

namespace cpu {

void RmsNorm(DeviceContext& context, TensorView x, TensorView weight, float eps, TensorView y,
             std::span<const int32_t> rows) {
  const int64_t n = x.shape[1];
  const float* w = weight.as<float>();
  ParallelRows(context, y.shape[0], 2 * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = x.as<float>() + (rows.empty() ? row : rows[row]) * n;
      if (y.dtype == DType::kF32) {
        HWY_DYNAMIC_DISPATCH(RmsNormF32)(in, w, n, eps, y.as<float>() + row * n);
      } else {
        HWY_DYNAMIC_DISPATCH(RmsNormBF16)(in, w, n, eps, y.as<BF16>() + row * n);
      }
    }
  });
}

void UnitNorm(DeviceContext& context, const HeadRows& x, const float* scale) {
  const int64_t row_work = int64_t{2} * x.n_heads * x.head_dim;
  ParallelRows(context, x.n_rows, row_work, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int head = 0; head < x.n_heads; ++head) {
        float* data = x.data + row * x.row_stride + int64_t{head} * x.head_dim;
        HWY_DYNAMIC_DISPATCH(UnitNormHead)(data, x.head_dim, scale ? scale[head] : 1.0f);
      }
    }
  });
}

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  const int64_t n = y.shape[1];
  ParallelRows(context, y.shape[0], kExpWork * n, [&](int64_t begin, int64_t end) {
    const float* in = gate_up.as<float>() + begin * 2 * n;
    if (y.dtype == DType::kF32) {
      HWY_DYNAMIC_DISPATCH(SwiGluF32)(in, end - begin, n, y.as<float>() + begin * n);
    } else {
      HWY_DYNAMIC_DISPATCH(SwiGluBF16)(in, end - begin, n, y.as<BF16>() + begin * n);
    }
  });
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], kExpWork * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      out[row] = HWY_DYNAMIC_DISPATCH(LogSumExpRow)(x.as<float>() + row * n, n);
    }
  });
}

}  // namespace cpu
}  // namespace ovq
#endif  // HWY_ONCE
