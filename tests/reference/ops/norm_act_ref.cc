// RmsNorm    y[i] = r / sqrt(mean(r^2) + eps) * weight (+ bias), r = x[rows[i]]; x [n, d]
// LayerNorm  y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias, r = x[rows[i]]
// SwiGlu     y = gate / (1 + e^-gate) * up; gate_up [n, 2f] = [gate | up], y [n, f]
// SquaredRelu y = max(x, 0)^2;  AddScaled x = a x + b y;  AddBias x = scale (x + bias)
// SoftCap    x = cap tanh(x / cap)
// MixTowards x += (target - x) share, share = 1 / (1 + e^-(gate + bias)) or one number
// GateBySigmoid x = x / (1 + e^-gate);  Copy y = x
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x), NaN unless all are finite; x [n, m],
// out [n]
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/ops_device.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

void Store(const TensorView& y, int64_t i, double value) {
  if (y.dtype == DType::kF32) {
    y.as<float>()[i] = static_cast<float>(value);
  } else {
    y.as<BF16>()[i] = RoundToBF16(static_cast<float>(value));
  }
}

}  // namespace

void RmsNorm(DeviceContext&, TensorView x, const NormWeights& weights, TensorView y,
             std::span<const int32_t> rows) {
  const int64_t d = x.shape[1];
  const float *weight = weights.weight.as<float>(), *bias = weights.bias.as<float>();
  for (int64_t row = 0; row < y.shape[0]; ++row) {
    const float* in = x.as<float>() + (rows.empty() ? row : rows[row]) * d;
    double sum = 0;
    for (int64_t i = 0; i < d; ++i) sum += double{in[i]} * in[i];
    const double rms = std::sqrt(sum / static_cast<double>(d) + weights.eps);
    for (int64_t i = 0; i < d; ++i) {
      Store(y, row * d + i, in[i] / rms * weight[i] + (bias ? bias[i] : 0));
    }
  }
}

void LayerNorm(DeviceContext&, TensorView x, const NormWeights& weights, TensorView y,
               std::span<const int32_t> rows) {
  const int64_t d = x.shape[1];
  const float *weight = weights.weight.as<float>(), *bias = weights.bias.as<float>();
  for (int64_t row = 0; row < y.shape[0]; ++row) {
    const float* in = x.as<float>() + (rows.empty() ? row : rows[row]) * d;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < d; ++i) sum += in[i];
    const double mean = sum / static_cast<double>(d);
    for (int64_t i = 0; i < d; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(d) + weights.eps);
    for (int64_t i = 0; i < d; ++i) {
      Store(y, row * d + i, (in[i] - mean) / deviation * weight[i] + bias[i]);
    }
  }
}

void SquaredRelu(DeviceContext&, TensorView x, TensorView y) {
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    const double positive = std::max(x.as<float>()[i], 0.0f);
    Store(y, i, positive * positive);
  }
}

void AddScaled(DeviceContext&, TensorView x, float a, TensorView y, float b) {
  float* to = x.as<float>();
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    to[i] = static_cast<float>((a == 0 ? 0 : double{a} * to[i]) + double{b} * y.as<float>()[i]);
  }
}

void AddBias(DeviceContext&, TensorView x, TensorView bias, float scale) {
  const int64_t m = x.shape[1];
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    float& to = x.as<float>()[i];
    to = static_cast<float>(scale * (double{to} + (bias.data ? bias.as<float>()[i % m] : 0)));
  }
}

void MixTowards(DeviceContext&, const Mix& mix) {
  for (int64_t row = 0; row < mix.n_rows; ++row) {
    for (int64_t i = 0; i < mix.width; ++i) {
      const int64_t at = row * mix.width + i;
      const double share =
          mix.gate ? 1 / (1 + std::exp(-(double{mix.gate[at]} + mix.bias[i]))) : mix.share;
      float& x = mix.x[row * mix.x_stride + i];
      x = static_cast<float>(x + (double{mix.target[at]} - x) * share);
    }
  }
}

void GateBySigmoid(DeviceContext&, TensorView x, const float* gate, int64_t gate_stride) {
  const int64_t width = x.shape[1];
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    Store(x, i, FloatAt(x, i) / (1 + std::exp(-double{gate[i / width * gate_stride + i % width]})));
  }
}

void Copy(DeviceContext&, TensorView x, TensorView y) {
  for (int64_t i = 0; i < x.shape.elements(); ++i) Store(y, i, x.as<float>()[i]);
}

void SoftCap(DeviceContext&, TensorView x, float cap) {
  for (int64_t i = 0; i < x.shape.elements(); ++i) {
    float& logit = x.as<float>()[i];
    logit = static_cast<float>(cap * std::tanh(double{logit} / cap));
  }
}

void SwiGlu(DeviceContext&, TensorView gate_up, TensorView y) {
  const int64_t f = y.shape[1];
  for (int64_t row = 0; row < y.shape[0]; ++row) {
    const float* gate = gate_up.as<float>() + row * 2 * f;
    const float* up = gate + f;
    for (int64_t i = 0; i < f; ++i) {
      Store(y, row * f + i, gate[i] / (1 + std::exp(-double{gate[i]})) * up[i]);
    }
  }
}

void LogSumExp(DeviceContext&, TensorView x, float* out) {
  const int64_t m = x.shape[1];
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    const float* in = x.as<float>() + row * m;
    const double max = *std::max_element(in, in + m);
    double sum = 0;
    for (int64_t i = 0; i < m; ++i) sum += std::exp(in[i] - max);
    const bool finite = std::all_of(in, in + m, [](float v) { return std::isfinite(v); });
    out[row] =
        finite ? static_cast<float>(max + std::log(sum)) : std::numeric_limits<float>::quiet_NaN();
  }
}

const ReferenceOf<cpu::RmsNorm> kRmsNorm = RmsNorm;
const ReferenceOf<cpu::LayerNorm> kLayerNorm = LayerNorm;
const ReferenceOf<cpu::SquaredRelu> kSquaredRelu = SquaredRelu;
const ReferenceOf<cpu::AddScaled> kAddScaled = AddScaled;
const ReferenceOf<cpu::AddBias> kAddBias = AddBias;
const ReferenceOf<cpu::MixTowards> kMixTowards = MixTowards;
const ReferenceOf<cpu::GateBySigmoid> kGateBySigmoid = GateBySigmoid;
const ReferenceOf<cpu::Copy> kCopy = Copy;
const ReferenceOf<cpu::SoftCap> kSoftCap = SoftCap;
const ReferenceOf<cpu::SwiGlu> kSwiGlu = SwiGlu;
const ReferenceOf<cpu::LogSumExp> kLogSumExp = LogSumExp;

}  // namespace ovq::kernels::ref
