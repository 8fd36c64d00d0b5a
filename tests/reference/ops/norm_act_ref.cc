// Normalize  y[i] = r / sqrt(mean(r^2) + eps) * weight (+ bias), r = x[rows[i]]; x [n, d]; or
//            y[i] = (r - mean(r)) / sqrt(var(r) + eps) * weight + bias
// MapRows    the equations of RowMap
// LogSumExp  out = max + ln(sum(e^(x - max))), max = max(x), NaN unless all are finite; x [n, m],
// out [n]
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/ops/ops_device.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

void Store(const Activations& y, int64_t i, double value) {
  if (y.f32 != nullptr) {
    y.f32[i] = static_cast<float>(value);
  } else {
    y.bf16[i] = RoundToBF16(static_cast<float>(value));
  }
}

double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

double Mapped(const RowMap& map, int64_t row, int64_t i) {
  const auto load = [](const float* p, int64_t at) { return p ? double{p[at]} : 0; };
  const double a = load(map.a, row * map.a_stride + i), b = load(map.b, row * map.b_stride + i),
               c = load(map.c, i), p = map.p;
  const int64_t at = row * map.y_stride + i;
  const double y = map.y.f32 ? map.y.f32[at] : ToFloat(map.y.bf16[at]);
  switch (map.fn) {
    case RowMap::kSwiGlu:
      return a * Sigmoid(a) * b;
    case RowMap::kGeGlu:
      return a / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a))) *
             b;
    case RowMap::kSquaredRelu:
      return std::max(a, 0.0) * std::max(a, 0.0);
    case RowMap::kAddScaled:
      return (p == 0 ? 0 : p * y) + map.q * a;
    case RowMap::kAddBias:
      return p * (y + c);
    case RowMap::kMixTowards:
      return y + (a - y) * (map.b ? Sigmoid(b + c) : p);
    case RowMap::kGate:
      return y * Sigmoid(a);
    case RowMap::kSoftCap:
      return p * std::tanh(y / p);
    case RowMap::kCopy:
      break;
  }
  return a;
}

}  // namespace

void Normalize(DeviceContext&, const NormTask& task) {
  const int64_t d = task.width;
  for (int64_t row = 0; row < task.n_rows; ++row) {
    const float* in = task.x + (task.rows ? task.rows[row] : row) * d;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < d; ++i) sum += in[i];
    const double mean = task.is_centered ? sum / static_cast<double>(d) : 0;
    for (int64_t i = 0; i < d; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(d) + task.eps);
    for (int64_t i = 0; i < d; ++i) {
      Store(task.y, row * d + i,
            (in[i] - mean) / deviation * task.weight[i] + (task.bias ? task.bias[i] : 0));
    }
  }
}

void MapRows(DeviceContext&, const RowMap& map) {
  for (int64_t row = 0; row < map.n_rows; ++row) {
    for (int64_t i = 0; i < map.width; ++i) {
      Store(map.y, row * map.y_stride + i, Mapped(map, row, i));
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

const ReferenceOf<cpu::Normalize> kNormalize = Normalize;
const ReferenceOf<cpu::MapRows> kMapRows = MapRows;
const ReferenceOf<cpu::LogSumExp> kLogSumExp = LogSumExp;

}  // namespace ovq::kernels::ref
