// Normalize  y[i] = r / sqrt(mean(r^2) + eps) * weight (+ bias), r = x[rows[i]]; x [n, d]; or
//            y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias
// NormHead   in place over x [n]: x / sqrt(sum(x^2) + 1e-6) * scale, x / (|x| + 1e-5) * scale,
//            x * scale, or one of these norms
// MapRows    the equations of RowMap
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x), NaN unless all are finite; x [n, m],
// out [n]
#include <cmath>
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
#include "kernels/ops/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

HWY_INLINE V Load(const Activations& y, int64_t at, int64_t n) {
  return y.f32 != nullptr ? Load(y.f32 + at, n) : Load(y.bf16 + at, n);
}
HWY_INLINE void Store(V v, int64_t n, const Activations& y, int64_t at) {
  y.f32 != nullptr ? Store(v, n, y.f32 + at) : Store(v, n, y.bf16 + at);
}

// Computes n elements of y from `at` on. bias may be null.
void RmsNorm(const float* x, int64_t n, const float* weight, const float* bias, float eps,
             const Activations& y, int64_t at) {
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const V factor = hn::Set(d, 1.0f / std::sqrt(mean + eps));
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V scaled = hn::Mul(hn::Mul(Load(x + i, m), factor), Load(weight + i, m));
    Store(bias ? hn::Add(scaled, Load(bias + i, m)) : scaled, m, y, at + i);
  });
}

void LayerNorm(const float* x, int64_t n, const float* weight, const float* bias, float eps,
               const Activations& y, int64_t at) {
  const auto size = static_cast<float>(n);
  const V mean =
      hn::Set(d, SumOver(x, n, [](V v, V sum) HWY_ATTR { return hn::Add(sum, v); }) / size);
  const float squares = SumOver(x, n, [mean](V v, V sum) HWY_ATTR {
    const V centered = hn::Sub(v, mean);
    return hn::MulAdd(centered, centered, sum);
  });
  const V factor = hn::Set(d, 1.0f / std::sqrt(squares / size + eps));
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V unit = hn::Mul(hn::Sub(Load(x + i, m), mean), factor);
    Store(hn::MulAdd(unit, Load(weight + i, m), Load(bias + i, m)), m, y, at + i);
  });
}

// Computes row `row` of y.
void NormRow(const NormTask& task, int64_t row) {
  const int64_t n = task.width;
  const float* x = task.x + (task.rows == nullptr ? row : task.rows[row]) * n;
  const auto norm = task.is_centered ? LayerNorm : RmsNorm;
  norm(x, n, task.weight, task.bias, task.eps, task.y, row * n);
}

void NormHead(HeadNorm norm, float* x, int n, float scale, const float* weights, float eps) {
  const Activations y = {.f32 = x};
  if (norm == HeadNorm::kLayer) {
    return LayerNorm(x, n, weights, weights + n, kHeadNormEps, y, 0);
  }
  if (norm == HeadNorm::kRms) return RmsNorm(x, n, weights, nullptr, eps, y, 0);
  if (norm == HeadNorm::kUnit) scale /= std::sqrt(SumOfSquares(x, n) + 1e-6f);
  if (norm == HeadNorm::kL2) scale /= std::sqrt(SumOfSquares(x, n)) + kHeadNormEps;
  if (scale == 1) return;
  const V factor = hn::Set(d, scale);
  ForEachVector(n, [&](int64_t i, int64_t m) { Store(hn::Mul(Load(x + i, m), factor), m, x + i); });
}

// Elements i .. i + m of row `row` of y.
HWY_INLINE V Mapped(const RowMap& map, int64_t row, int64_t i, int64_t m) {
  const auto a = [&] { return Load(map.a + row * map.a_stride + i, m); };
  const auto b = [&] { return Load(map.b + row * map.b_stride + i, m); };
  const auto c = [&] { return Load(map.c + i, m); };
  const auto y = [&] { return Load(map.y, row * map.y_stride + i, m); };
  const V p = hn::Set(d, map.p);
  switch (map.fn) {
    case RowMap::kSwiGlu:
      return hn::Mul(Silu(a()), b());
    case RowMap::kGeGlu: {
      const V gate = a(), square = hn::Mul(gate, gate);
      const V u = hn::MulAdd(hn::Mul(square, gate), hn::Set(d, kGeluCube), gate);
      return hn::Mul(hn::Mul(gate, Sigmoid(hn::Mul(u, hn::Set(d, 2 * kGeluScale)))), b());
    }
    case RowMap::kSquaredRelu: {
      const V positive = hn::Max(a(), hn::Zero(d));
      return hn::Mul(positive, positive);
    }
    case RowMap::kAddScaled: {
      const V scaled = hn::Mul(a(), hn::Set(d, map.q));
      return map.p == 0 ? scaled : hn::MulAdd(y(), p, scaled);
    }
    case RowMap::kAddBias:
      return hn::Mul(map.c ? hn::Add(y(), c()) : y(), p);
    case RowMap::kMixTowards: {
      const V share = map.b ? Sigmoid(hn::Add(b(), c())) : p, from = y();
      return hn::MulAdd(hn::Sub(a(), from), share, from);
    }
    case RowMap::kGate:
      return hn::Mul(y(), Sigmoid(a()));
    case RowMap::kSoftCap:
      return hn::Mul(hn::Tanh(d, hn::Div(y(), p)), p);
    case RowMap::kCopy:
      break;
  }
  return a();
}

void MapRow(const RowMap& map, int64_t row) {
  ForEachVector(map.width, [&](int64_t i, int64_t m) {
    Store(Mapped(map, row, i, m), m, map.y, row * map.y_stride + i);
  });
}

// 0, or NaN if some x is not finite.
float ZeroIfFinite(const float* x, int64_t n) {
  V nothing = hn::Zero(d);
  ForEachVector(n, [&](int64_t i, int64_t m) {
    nothing = hn::MulAdd(Load(x + i, m, 0), hn::Zero(d), nothing);
  });
  return hn::GetLane(hn::SumOfLanes(d, nothing));
}

float LogSumExp(const float* x, int64_t n) {
  const int64_t lanes = Lanes();
  V highest = hn::Set(d, kMinusInfinity);
  V nothing = hn::Zero(d);  // 0, or NaN once some x is not finite
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V v = Load(x + i, m, x[0]);
    highest = hn::Max(highest, v);
    nothing = hn::MulAdd(v, hn::Zero(d), nothing);
  });
  const float spoilt = hn::GetLane(hn::SumOfLanes(d, nothing));
  if (std::isnan(spoilt)) return spoilt;
  const float max = hn::GetLane(hn::MaxOfLanes(d, highest));

  const V shift = hn::Set(d, max);
  V sum[2] = {hn::Zero(d), hn::Zero(d)};
  const auto add = [&](V& to, V v) { to = hn::Add(to, hn::Exp(d, hn::Sub(v, shift))); };
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    for (int k = 0; k < 2; ++k) add(sum[k], hn::LoadU(d, x + i + k * lanes));
  }
  ForEachVector(n - i,
                [&](int64_t j, int64_t m) { add(sum[0], Load(x + i + j, m, kMinusInfinity)); });
  return max + std::log(hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[0], sum[1]))));
}

// The mask of lanes i .. i + Lanes(), all within a word: Lanes() divides 32.
HWY_INLINE hn::Mask<D> AllowedLanes(const uint32_t* allowed, int64_t i) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::Set(du, allowed[i / 32] >> (i % 32));
  return hn::RebindMask(d, hn::TestBit(bits, hn::Shl(hn::Set(du, 1), hn::Iota(du, 0))));
}

float MaskedLogSumExp(const float* x, const uint32_t* allowed, int64_t n, float* y) {
  static_assert(hn::MaxLanes(d) <= 32, "a word has a bit for each lane");
  const V nothing = hn::Set(d, kMinusInfinity);
  V highest = nothing;
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V v = Load(x + i, m, kMinusInfinity);
    const auto kept = hn::AndNot(hn::IsNaN(v), AllowedLanes(allowed, i));
    const V masked = hn::IfThenElse(kept, v, nothing);
    Store(masked, m, y + i);
    highest = hn::Max(highest, masked);
  });
  const float max = hn::GetLane(hn::MaxOfLanes(d, highest));
  if (max == kMinusInfinity) return max;
  const V shift = hn::Set(d, max);
  V sum = hn::Zero(d);
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V v = Load(y + i, m, kMinusInfinity);
    if (hn::AllTrue(d, hn::Eq(v, nothing))) return;
    sum = hn::Add(sum, hn::Exp(d, hn::Sub(v, shift)));
  });
  return max + std::log(hn::GetLane(hn::SumOfLanes(d, sum)));
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(NormRow);
HWY_EXPORT(NormHead);
HWY_EXPORT(MapRow);
HWY_EXPORT(ZeroIfFinite);
HWY_EXPORT(LogSumExp);
HWY_EXPORT(MaskedLogSumExp);

constexpr int64_t kExpWork = 8;  // cost of one exponential in multiply-adds, roughly

}  // namespace

namespace cpu {

void Normalize(DeviceContext& context, const NormTask& task) {
  const int64_t work = task.is_centered ? 4 : 2;
  ParallelRows(context, task.n_rows, work * task.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(NormRow)(task, row);
  });
}

void NormHead(HeadNorm norm, float* x, int n, float scale, const float* weights, float eps) {
  HWY_DYNAMIC_DISPATCH(NormHead)(norm, x, n, scale, weights, eps);
}

float ZeroIfFinite(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(ZeroIfFinite)(x, n); }

float RowLogSumExp(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(LogSumExp)(x, n); }

float MaskedLogSumExp(const float* x, const uint32_t* allowed, int64_t n, float* y) {
  return HWY_DYNAMIC_DISPATCH(MaskedLogSumExp)(x, allowed, n, y);
}

void MapRows(DeviceContext& context, const RowMap& map) {
  const bool has_exp = map.fn == RowMap::kGate || map.fn == RowMap::kSoftCap || map.b != nullptr;
  const int64_t work = has_exp ? kExpWork : 1;
  ParallelRows(context, map.n_rows, work * map.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(MapRow)(map, row);
  });
}

void LogSumExp(DeviceContext& context, TensorView x, float* out) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], kExpWork * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) out[row] = RowLogSumExp(x.as<float>() + row * n, n);
  });
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
