// RmsNorm    y[i] = r / sqrt(mean(r^2) + eps) * weight (+ bias), r = x[rows[i]]; x [n, d]
// LayerNorm  y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias, r = x[rows[i]]
// NormHead   in place over x [n]: x / sqrt(sum(x^2) + 1e-6) * scale, x / (|x| + 1e-5) * scale,
//            x * scale, LayerNorm or RmsNorm
// SwiGlu     y = gate / (1 + e^-gate) * up; gate_up [n, 2f] = [gate | up], y [n, f]
// SquaredRelu y = max(x, 0)^2;  AddScaled x = a x + b y;  AddBias x = scale (x + bias)
// SoftCap    x = cap tanh(x / cap)
// MixTowards x += (target - x) share, share = 1 / (1 + e^-(gate + bias)) or one number
// GateBySigmoid x = x / (1 + e^-gate);  Copy y = x
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

// The mean, and 1 / standard deviation.
struct Moments {
  float mean, factor;
};
Moments ComputeMoments(const float* x, int64_t n, float eps) {
  const float mean =
      SumOver(x, n, [](V v, V sum) HWY_ATTR { return hn::Add(sum, v); }) / static_cast<float>(n);
  const V shift = hn::Set(d, mean);
  const float squares = SumOver(x, n, [shift](V v, V sum) HWY_ATTR {
    const V centered = hn::Sub(v, shift);
    return hn::MulAdd(centered, centered, sum);
  });
  return {mean, 1.0f / std::sqrt(squares / static_cast<float>(n) + eps)};
}

template <class T>
void RmsNormRow(const float* x, int64_t n, const NormWeights& weights, T* y) {
  const float mean = SumOfSquares(x, n) / static_cast<float>(n);
  const V factor = hn::Set(d, 1.0f / std::sqrt(mean + weights.eps));
  const float *weight = weights.weight.as<float>(), *bias = weights.bias.as<float>();
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V scaled = hn::Mul(hn::Mul(Load(x + i, m), factor), Load(weight + i, m));
    Store(bias ? hn::Add(scaled, Load(bias + i, m)) : scaled, m, y + i);
  });
}

// Computes row `row` of y.
void RmsNorm(const float* x, const NormWeights& weights, TensorView y, int64_t row) {
  const int64_t n = y.shape[1], at = row * n;
  if (y.dtype == DType::kF32) return RmsNormRow(x, n, weights, y.as<float>() + at);
  RmsNormRow(x, n, weights, y.as<BF16>() + at);
}

template <class T>
void LayerNormRow(const float* x, int64_t n, const float* weight, const float* bias, float eps,
                  T* y) {
  const Moments moments = ComputeMoments(x, n, eps);
  const V mean = hn::Set(d, moments.mean), factor = hn::Set(d, moments.factor);
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V unit = hn::Mul(hn::Sub(Load(x + i, m), mean), factor);
    Store(hn::MulAdd(unit, Load(weight + i, m), Load(bias + i, m)), m, y + i);
  });
}

void LayerNorm(const float* x, const NormWeights& weights, TensorView y, int64_t row) {
  const int64_t n = y.shape[1], at = row * n;
  const float *weight = weights.weight.as<float>(), *bias = weights.bias.as<float>();
  if (y.dtype == DType::kF32) {
    return LayerNormRow(x, n, weight, bias, weights.eps, y.as<float>() + at);
  }
  LayerNormRow(x, n, weight, bias, weights.eps, y.as<BF16>() + at);
}

// The factor of a head's norm. scale: for norms without weights.
float HeadFactor(HeadNorm norm, const float* x, int n, float scale, float eps) {
  if (norm == HeadNorm::kNone) return scale;
  const float squares = SumOfSquares(x, n);
  if (norm == HeadNorm::kRms) return 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  return norm == HeadNorm::kUnit ? scale / std::sqrt(squares + 1e-6f)
                                 : scale / (std::sqrt(squares) + kHeadNormEps);
}

void NormHead(HeadNorm norm, float* x, int n, float scale, const float* weights, float eps) {
  if (norm == HeadNorm::kNone && scale == 1) return;
  if (norm == HeadNorm::kLayer) {
    return LayerNormRow(x, n, weights, weights + n, kHeadNormEps, x);
  }
  const V factor = hn::Set(d, HeadFactor(norm, x, n, scale, eps));
  if (norm == HeadNorm::kRms) {
    return ForEachVector(n, [&](int64_t i, int64_t m) {
      Store(hn::Mul(hn::Mul(Load(x + i, m), factor), Load(weights + i, m)), m, x + i);
    });
  }
  ForEachVector(n, [&](int64_t i, int64_t m) { Store(hn::Mul(Load(x + i, m), factor), m, x + i); });
}

template <class T>
void SwiGluRow(const float* gate, int64_t n, T* y) {
  ForEachVector(n, [&](int64_t i, int64_t m) {
    Store(hn::Mul(Silu(Load(gate + i, m)), Load(gate + n + i, m)), m, y + i);
  });
}

void SwiGlu(TensorView gate_up, TensorView y, int64_t row) {
  const int64_t n = y.shape[1];
  const float* gate = gate_up.as<float>() + row * 2 * n;
  if (y.dtype == DType::kF32) return SwiGluRow(gate, n, y.as<float>() + row * n);
  SwiGluRow(gate, n, y.as<BF16>() + row * n);
}

template <class T>
void SquaredReluRow(const float* x, int64_t n, T* y) {
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V positive = hn::Max(Load(x + i, m), hn::Zero(d));
    Store(hn::Mul(positive, positive), m, y + i);
  });
}

void SquaredRelu(TensorView x, TensorView y, int64_t row) {
  const int64_t n = y.shape[1];
  const float* in = x.as<float>() + row * n;
  if (y.dtype == DType::kF32) return SquaredReluRow(in, n, y.as<float>() + row * n);
  SquaredReluRow(in, n, y.as<BF16>() + row * n);
}

void AddScaled(float* x, float a, const float* y, float b, int64_t n) {
  const V kept = hn::Set(d, a), added = hn::Set(d, b);
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V scaled = hn::Mul(Load(y + i, m), added);
    Store(a == 0 ? scaled : hn::MulAdd(Load(x + i, m), kept, scaled), m, x + i);
  });
}

// bias may be null.
void AddBias(float* x, const float* bias, float scale, int64_t n) {
  const V factor = hn::Set(d, scale);
  ForEachVector(n, [&](int64_t i, int64_t m) {
    const V from = Load(x + i, m);
    Store(hn::Mul(bias ? hn::Add(from, Load(bias + i, m)) : from, factor), m, x + i);
  });
}

void MixTowards(const Mix& mix, int64_t row) {
  float* x = mix.x + row * mix.x_stride;
  const int64_t at = row * mix.width;
  ForEachVector(mix.width, [&](int64_t i, int64_t m) {
    V share = hn::Set(d, mix.share);
    if (mix.gate) {
      share = Sigmoid(hn::Add(Load(mix.gate + at + i, m), Load(mix.bias + i, m)));
    }
    const V from = Load(x + i, m);
    Store(hn::MulAdd(hn::Sub(Load(mix.target + at + i, m), from), share, from), m, x + i);
  });
}

template <class T>
void GateRow(T* x, const float* gate, int64_t n) {
  ForEachVector(n, [&](int64_t i, int64_t m) {
    Store(hn::Mul(Load(x + i, m), Sigmoid(Load(gate + i, m))), m, x + i);
  });
}

void GateBySigmoid(TensorView x, const float* gate, int64_t row) {
  const int64_t n = x.shape[1];
  if (x.dtype == DType::kF32) return GateRow(x.as<float>() + row * n, gate, n);
  GateRow(x.as<BF16>() + row * n, gate, n);
}

void Copy(const float* x, int64_t n, TensorView y, int64_t at) {
  ForEachVector(n, [&](int64_t i, int64_t m) {
    if (y.dtype == DType::kF32) {
      Store(Load(x + i, m), m, y.as<float>() + at + i);
    } else {
      Store(Load(x + i, m), m, y.as<BF16>() + at + i);
    }
  });
}

void SoftCap(float* x, int64_t n, float cap) {
  const V factor = hn::Set(d, cap);
  ForEachVector(n, [&](int64_t i, int64_t m) {
    Store(hn::Mul(hn::Tanh(d, hn::Div(Load(x + i, m), factor)), factor), m, x + i);
  });
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

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(LayerNorm);
HWY_EXPORT(NormHead);
HWY_EXPORT(SwiGlu);
HWY_EXPORT(SquaredRelu);
HWY_EXPORT(AddScaled);
HWY_EXPORT(AddBias);
HWY_EXPORT(MixTowards);
HWY_EXPORT(GateBySigmoid);
HWY_EXPORT(Copy);
HWY_EXPORT(SoftCap);
HWY_EXPORT(LogSumExp);

constexpr int64_t kExpWork = 8;  // cost of one exponential in multiply-adds, roughly

}  // namespace

namespace cpu {

void RmsNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
             std::span<const int32_t> rows) {
  const int64_t n = x.shape[1];
  ParallelRows(context, y.shape[0], 2 * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = x.as<float>() + (rows.empty() ? row : rows[row]) * n;
      HWY_DYNAMIC_DISPATCH(RmsNorm)(in, weights, y, row);
    }
  });
}

void LayerNorm(DeviceContext& context, TensorView x, const NormWeights& weights, TensorView y,
               std::span<const int32_t> rows) {
  const int64_t n = x.shape[1];
  ParallelRows(context, y.shape[0], 4 * n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = x.as<float>() + (rows.empty() ? row : rows[row]) * n;
      HWY_DYNAMIC_DISPATCH(LayerNorm)(in, weights, y, row);
    }
  });
}

void NormHead(HeadNorm norm, float* x, int n, float scale, const float* weights, float eps) {
  HWY_DYNAMIC_DISPATCH(NormHead)(norm, x, n, scale, weights, eps);
}

void SwiGlu(DeviceContext& context, TensorView gate_up, TensorView y) {
  ParallelRows(context, y.shape[0], kExpWork * y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(SwiGlu)(gate_up, y, row);
  });
}

void SquaredRelu(DeviceContext& context, TensorView x, TensorView y) {
  ParallelRows(context, y.shape[0], y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(SquaredRelu)(x, y, row);
  });
}

void AddScaled(DeviceContext& context, TensorView x, float a, TensorView y, float b) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], n, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddScaled)
    (x.as<float>() + begin * n, a, y.as<float>() + begin * n, b, (end - begin) * n);
  });
}

void AddBias(DeviceContext& context, TensorView x, TensorView bias, float scale) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(AddBias)(x.as<float>() + row * n, bias.as<float>(), scale, n);
    }
  });
}

void MixTowards(DeviceContext& context, const Mix& mix) {
  const int64_t work = mix.width * (mix.gate ? kExpWork : 1);
  ParallelRows(context, mix.n_rows, work, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) HWY_DYNAMIC_DISPATCH(MixTowards)(mix, row);
  });
}

void GateBySigmoid(DeviceContext& context, TensorView x, const float* gate, int64_t gate_stride) {
  ParallelRows(context, x.shape[0], kExpWork * x.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(GateBySigmoid)(x, gate + row * gate_stride, row);
    }
  });
}

void Copy(DeviceContext& context, TensorView x, TensorView y) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], n, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Copy)(x.as<float>() + begin * n, (end - begin) * n, y, begin * n);
  });
}

void SoftCap(DeviceContext& context, TensorView x, float cap) {
  const int64_t n = x.shape[1];
  ParallelRows(context, x.shape[0], 2 * kExpWork * n, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SoftCap)(x.as<float>() + begin * n, (end - begin) * n, cap);
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
}  // namespace ovq::kernels
#endif  // HWY_ONCE
