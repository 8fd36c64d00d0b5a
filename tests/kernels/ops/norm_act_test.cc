#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "tests/device_tests.h"

namespace ovq::kernels {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::DeviceArray;
using test::kRoundF32;
using test::MakeContext;
using test::MakeView;
using test::RandomNormal;

constexpr int64_t kRows = 3;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every remainder of a loop over four 16-lane vectors, and longer rows.
std::vector<int64_t> Widths() {
  std::vector<int64_t> widths;
  for (int64_t n = 1; n <= 67; ++n) widths.push_back(n);
  widths.insert(widths.end(), {127, 128, 200, 257, 768});
  return widths;
}

// A sum of n squares in at least four parallel chains is off by at most (n / 4 + 6) roundings of
// itself, its root by half of that; the root, the quotient and two products round once each.
double NormTolerance(int64_t n) { return (static_cast<double>(n) / 8 + 3 + 5) * kRoundF32; }

// Runs with one thread, too.
class NormActTargets : public test::TargetTest {
 protected:
  void SetUp() override {
    TargetTest::SetUp();
    if (!IsSkipped()) one_ = MakeContext(GetParam().device, 1);
  }
  std::unique_ptr<DeviceContext> one_;
};
INSTANTIATE_TEST_SUITE_P(, NormActTargets, testing::ValuesIn(test::Targets()), test::TargetName);

// The operations on values of the host. T is the type of the result.
template <class T>
std::vector<T> RunNorm(decltype(&RmsNorm) norm, DeviceContext& context, std::span<const float> x,
                       std::span<const float> weight, std::span<const float> bias, float eps,
                       std::span<const int32_t> rows) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t n = static_cast<int64_t>(x.size()) / width;
  const int64_t n_out = rows.empty() ? n : static_cast<int64_t>(rows.size());
  const DeviceArray<float> in(context, x), w(context, weight), b(context, bias);
  const DeviceArray<int32_t> row_list(context, rows);
  const DeviceArray<T> y(context, static_cast<size_t>(n_out * width));
  NormWeights weights = {.weight = w.View({width}), .eps = eps};
  if (!bias.empty()) weights.bias = b.View({width});
  norm(context, in.View({n, width}), weights, y.View({n_out, width}), row_list.span());
  return y.Read();
}

template <class T = float>
std::vector<T> RunRmsNorm(DeviceContext& context, std::span<const float> x,
                          std::span<const float> weight, float eps,
                          std::span<const int32_t> rows = {}, std::span<const float> bias = {}) {
  return RunNorm<T>(RmsNorm, context, x, weight, bias, eps, rows);
}

// x [rows, stride] of heads [n_heads, head_dim].
std::vector<float> RunUnitNorm(DeviceContext& context, std::span<const float> x, int n_heads,
                               int head_dim, int64_t stride, std::span<const float> scale) {
  const DeviceArray<float> data(context, x), scales(context, scale);
  const int64_t n = static_cast<int64_t>(x.size()) / stride;
  PrepareHeads(context, {.queries = {data.data(), n, n_heads, head_dim, stride},
                         .beta = scale.empty() ? nullptr : scales.data()});
  return data.Read();
}

template <class T = float>
std::vector<T> RunLayerNorm(DeviceContext& context, std::span<const float> x,
                            std::span<const float> weight, std::span<const float> bias,
                            std::span<const int32_t> rows = {}) {
  return RunNorm<T>(LayerNorm, context, x, weight, bias, 1e-5f, rows);
}

// One head a row.
std::vector<float> RunHeadNorm(DeviceContext& context, HeadNorm norm, std::span<const float> x,
                               std::span<const float> weight_bias) {
  const DeviceArray<float> data(context, x), weights(context, weight_bias);
  const auto d = static_cast<int>(weight_bias.size() / 2);
  const int64_t n = static_cast<int64_t>(x.size()) / d;
  const bool layer = norm == HeadNorm::kLayer;
  PrepareHeads(context, {.queries = {data.data(), n, 1, d, d},
                         .norm = norm,
                         .beta = layer ? nullptr : weights.data(),
                         .query_norm = layer ? weights.data() : nullptr,
                         .key_norm = layer ? weights.data() : nullptr});
  return data.Read();
}

template <class T = float>
std::vector<T> RunSquaredRelu(DeviceContext& context, std::span<const float> x, int64_t width) {
  const int64_t n = static_cast<int64_t>(x.size()) / width;
  const DeviceArray<float> in(context, x);
  const DeviceArray<T> y(context, x.size());
  SquaredRelu(context, in.View({n, width}), y.View({n, width}));
  return y.Read();
}

std::vector<float> RunAddScaled(DeviceContext& context, std::span<const float> x, float a,
                                std::span<const float> y, float b, int64_t width) {
  const int64_t n = static_cast<int64_t>(x.size()) / width;
  const DeviceArray<float> to(context, x), from(context, y);
  AddScaled(context, to.View({n, width}), a, from.View({n, width}), b);
  return to.Read();
}

std::vector<float> RunAddBias(DeviceContext& context, std::span<const float> x,
                              std::span<const float> bias, float scale, int64_t width) {
  const DeviceArray<float> to(context, x), b(context, bias);
  AddBias(context, to.View({static_cast<int64_t>(x.size()) / width, width}),
          bias.empty() ? TensorView() : b.View({width}), scale);
  return to.Read();
}

// x [rows, 2 width], of which the first half is mixed; target and gate [rows, width].
std::vector<float> RunMix(DeviceContext& context, std::span<const float> x,
                          std::span<const float> target, std::span<const float> gate,
                          std::span<const float> bias) {
  const DeviceArray<float> to(context, x), t(context, target), g(context, gate), b(context, bias);
  const auto width = static_cast<int64_t>(bias.size());
  MixTowards(context, {.x = to.data(),
                       .n_rows = static_cast<int64_t>(target.size()) / width,
                       .width = width,
                       .x_stride = 2 * width,
                       .target = t.data(),
                       .gate = gate.empty() ? nullptr : g.data(),
                       .bias = gate.empty() ? nullptr : b.data(),
                       .share = 0.375f});
  return to.Read();
}

std::vector<float> RunSoftCap(DeviceContext& context, std::span<const float> x, int64_t width) {
  const DeviceArray<float> to(context, x);
  SoftCap(context, to.View({static_cast<int64_t>(x.size()) / width, width}), 30);
  return to.Read();
}

template <class T = float>
std::vector<T> RunSwiGlu(DeviceContext& context, std::span<const float> gate_up, int64_t width,
                         decltype(SwiGlu) activate = SwiGlu) {
  const int64_t n = static_cast<int64_t>(gate_up.size()) / (2 * width);
  const DeviceArray<float> in(context, gate_up);
  const DeviceArray<T> y(context, static_cast<size_t>(n * width));
  activate(context, in.View({n, 2 * width}), y.View({n, width}));
  return y.Read();
}

std::vector<float> RunLogSumExp(DeviceContext& context, std::span<const float> x, int64_t width) {
  const int64_t n = static_cast<int64_t>(x.size()) / width;
  const DeviceArray<float> in(context, x), y(context, static_cast<size_t>(n));
  LogSumExp(context, in.View({n, width}), y.data());
  return y.Read();
}

void AssertRelative(std::span<const float> actual, std::span<const float> expected,
                    double tolerance, const std::string& what) {
  AssertClose(
      actual, expected, [&](size_t i) { return tolerance * std::abs(expected[i]); }, what);
}

// A bfloat16 result is the float32 result rounded to nearest.
void AssertRounded(std::span<const BF16> narrow, std::span<const float> wide,
                   const std::string& what) {
  AssertSameBits(test::Widened(narrow), test::Widened(test::Rounded(wide)), what);
}

TEST(NormActReference, RmsNormByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> x{3, -4, 0, 0};  // mean square 6.25
  std::vector<float> weight{1, 2, 3, 4};
  std::vector<float> y(4);
  RmsNorm(*context, MakeView(x, {1, 4}), {.weight = MakeView(weight, {4})}, MakeView(y, {1, 4}));
  EXPECT_EQ(y, (std::vector<float>{1.2f, -3.2f, 0, 0}));
  RmsNorm(*context, MakeView(x, {1, 4}), {.weight = MakeView(weight, {4}), .eps = 93.75f},
          MakeView(y, {1, 4}));
  EXPECT_EQ(y, (std::vector<float>{0.3f, -0.8f, 0, 0}));
  std::vector<float> bias{1, 0, -2, 0};
  RmsNorm(*context, MakeView(x, {1, 4}), {MakeView(weight, {4}), MakeView(bias, {4}), 0},
          MakeView(y, {1, 4}));
  EXPECT_EQ(y, (std::vector<float>{2.2f, -3.2f, -2, 0}));
}

TEST(NormActReference, UnitNormByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> x{3000, 4000, 99, 0, 0.001f, 99};  // two rows of one head and a gap
  const float scale = 5;
  PrepareHeads(*context, {.queries = {x.data(), 2, 1, 2, 3}, .beta = &scale});
  EXPECT_FLOAT_EQ(x[0], 3);
  EXPECT_FLOAT_EQ(x[1], 4);
  EXPECT_FLOAT_EQ(x[4], 5 * std::sqrt(0.5f));  // the square of 0.001 is the 1e-6 under the root
  EXPECT_EQ(x[2], 99);
  EXPECT_EQ(x[5], 99);
}

TEST(NormActReference, LayerNormByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> x{1, 3, 5, 7};  // mean 4, variance 5
  std::vector<float> weight{1, 2, 1, 1}, bias{0, 0, 10, 0}, y(4);
  LayerNorm(*context, MakeView(x, {1, 4}), {MakeView(weight, {4}), MakeView(bias, {4}), 4},
            MakeView(y, {1, 4}));  // sqrt(5 + 4) = 3
  const std::vector<float> expected{-1, -2.0f / 3, 10 + 1.0f / 3, 1};
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(y[i], expected[i]) << i;
}

TEST(NormActReference, ElementwiseByHand) {
  auto context = MakeContext(Device::kReference);
  EXPECT_EQ(RunSquaredRelu(*context, std::vector<float>{-3, 0, 1.5f}, 3),
            (std::vector<float>{0, 0, 2.25f}));
  EXPECT_EQ(
      RunAddScaled(*context, std::vector<float>{1, 2}, 3, std::vector<float>{10, 20}, 0.5f, 2),
      (std::vector<float>{8, 16}));
  const std::vector<float> x{1, 2, 3, 4};
  EXPECT_EQ(RunAddBias(*context, x, std::vector<float>{10, -2}, 0.5f, 2),
            (std::vector<float>{5.5f, 0, 6.5f, 1}));
  EXPECT_EQ(RunAddBias(*context, x, {}, 3, 2), (std::vector<float>{3, 6, 9, 12}));
  // A gate of 0 stands for a half; what is not mixed stays.
  EXPECT_EQ(RunMix(*context, std::vector<float>{4, 9}, std::vector<float>{8},
                   std::vector<float>{-1}, std::vector<float>{1}),
            (std::vector<float>{6, 9}));
  EXPECT_EQ(
      RunMix(*context, std::vector<float>{4, 9}, std::vector<float>{8}, {}, std::vector<float>{0}),
      (std::vector<float>{5.5f, 9}));
  EXPECT_FLOAT_EQ(RunSoftCap(*context, std::vector<float>{30}, 1)[0], 30 * std::tanh(1.0f));
}

TEST(NormActReference, SwiGluByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> gate_up{0, 1, 7, 2};  // [gate gate | up up]
  std::vector<float> y(2);
  SwiGlu(*context, MakeView(gate_up, {1, 4}), MakeView(y, {1, 2}));
  EXPECT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(y[1], 1.4621172f);  // 2 / (1 + 1/e)
}

TEST(NormActReference, GeGluByHand) {
  auto context = MakeContext(Device::kReference);
  const std::vector<float> y = RunSwiGlu(*context, std::vector<float>{0, 1, -1, 7, 2, 2}, 3, GeGlu);
  EXPECT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(y[1], 1.6823840f);  // 2 * 0.841192, the tanh's form and not the error function's
  EXPECT_FLOAT_EQ(y[2], -0.3176160f);
}

TEST(NormActReference, LogSumExpByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> x{1000, 1000};
  std::vector<float> out(1);
  LogSumExp(*context, MakeView(x, {1, 2}), out.data());
  EXPECT_FLOAT_EQ(out[0], 1000.6931f);
}

TEST_P(NormActTargets, RmsNormAgreesWithReference) {
  for (int64_t n : Widths()) {
    const std::string what = absl::StrCat("width ", n);
    const std::vector<float> x = RandomNormal(static_cast<size_t>(kRows * n), 1);
    const std::vector<float> weight = RandomNormal(static_cast<size_t>(n), 2);
    const std::vector<float> expected = RunRmsNorm(*ref_, x, weight, 1e-5f);
    const std::vector<float> y = RunRmsNorm(*one_, x, weight, 1e-5f);
    AssertRelative(y, expected, NormTolerance(n), what);
    AssertRounded(RunRmsNorm<BF16>(*one_, x, weight, 1e-5f), y, what);
    // A bias is a sum with the rounded result.
    const std::vector<float> bias = RandomNormal(static_cast<size_t>(n), 3);
    std::vector<float> sum = y;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += bias[i % static_cast<size_t>(n)];
    AssertSameBits(RunRmsNorm(*one_, x, weight, 1e-5f, {}, bias), sum, what + " with a bias");
  }
}

// Any rows in any order, each with the bits it has among all rows.
TEST_P(NormActTargets, RmsNormOfChosenRows) {
  const std::vector<int32_t> rows{4, 0, 4, 2};
  for (size_t n : {7, 64}) {
    const std::vector<float> x = RandomNormal(5 * n, 7), weight = RandomNormal(n, 8);
    const std::vector<float> all = RunRmsNorm(*one_, x, weight, 1e-5f);
    std::vector<float> expected;
    for (int32_t row : rows) {
      const auto begin = all.begin() + row * static_cast<int64_t>(n);
      expected.insert(expected.end(), begin, begin + static_cast<int64_t>(n));
    }
    AssertSameBits(RunRmsNorm(*one_, x, weight, 1e-5f, rows), expected, absl::StrCat("width ", n));
    AssertRounded(RunRmsNorm<BF16>(*one_, x, weight, 1e-5f, rows), expected, "bfloat16");
    AssertRelative(RunRmsNorm(*ref_, x, weight, 1e-5f, rows), expected,
                   NormTolerance(static_cast<int64_t>(n)), "reference");
  }
}

// The mean is off by the roundings of its sum, the deviation's factor as in NormTolerance; a
// product and a sum round once each. Of a constant row the deviation is that of the mean's error,
// which eps keeps small against.
TEST_P(NormActTargets, LayerNormAgreesWithReference) {
  for (int64_t n : Widths()) {
    const std::string what = absl::StrCat("width ", n);
    const auto width = static_cast<size_t>(n);
    const std::vector<float> x = RandomNormal(kRows * width, 1), weight = RandomNormal(width, 2),
                             bias = RandomNormal(width, 3);
    const std::vector<float> expected = RunLayerNorm(*ref_, x, weight, bias);
    const std::vector<float> y = RunLayerNorm(*one_, x, weight, bias);
    const auto tolerance = [&](size_t i) {
      double sum = 0, magnitude = 0, squares = 0;
      const size_t row = i / width * width;
      for (size_t j = 0; j < width; ++j) sum += x[row + j], magnitude += std::abs(x[row + j]);
      const double mean = sum / static_cast<double>(n);
      for (size_t j = 0; j < width; ++j) squares += (x[row + j] - mean) * (x[row + j] - mean);
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      const double unit = std::abs(x[i] - mean) * factor;
      const double mean_error = (static_cast<double>(n) / 4 + 6) * kRoundF32 * magnitude * factor /
                                static_cast<double>(n);
      return std::abs(weight[i % width]) * (2 * mean_error + 2 * NormTolerance(n) * unit) +
             2 * kRoundF32 * (std::abs(expected[i]) + std::abs(bias[i % width]));
    };
    AssertClose(y, expected, tolerance, what);
    AssertRounded(RunLayerNorm<BF16>(*one_, x, weight, bias), y, what);
    // A head's norm is the same operation.
    std::vector<float> weight_bias = weight;
    weight_bias.insert(weight_bias.end(), bias.begin(), bias.end());
    AssertClose(RunHeadNorm(*one_, HeadNorm::kLayer, x, weight_bias),
                RunHeadNorm(*ref_, HeadNorm::kLayer, x, weight_bias), tolerance,
                what + " of heads");
    AssertRelative(RunHeadNorm(*one_, HeadNorm::kL2, x, weight_bias),
                   RunHeadNorm(*ref_, HeadNorm::kL2, x, weight_bias), NormTolerance(n) + kRoundF32,
                   what + " L2");
  }
}

TEST_P(NormActTargets, LayerNormOfChosenRows) {
  const std::vector<float> x = RandomNormal(5 * 40, 7), weight = RandomNormal(40, 8),
                           bias = RandomNormal(40, 9);
  const std::vector<float> all = RunLayerNorm(*one_, x, weight, bias);
  const std::vector<int32_t> rows{4, 0};
  std::vector<float> expected(all.begin() + 160, all.end());
  expected.insert(expected.end(), all.begin(), all.begin() + 40);
  AssertSameBits(RunLayerNorm(*one_, x, weight, bias, rows), expected, "rows 4 and 0");
}

// Each rounds a few times: the exponential of a gate and the hyperbolic tangent are good to a few
// roundings of themselves, sums to those of their terms.
TEST_P(NormActTargets, ElementwiseAgreesWithReference) {
  for (int64_t n : Widths()) {
    const std::string what = absl::StrCat("width ", n);
    const auto size = static_cast<size_t>(kRows * n);
    std::vector<float> x = RandomNormal(2 * size, 3), y = RandomNormal(2 * size, 4);
    const std::vector<float> target = RandomNormal(size, 5),
                             bias = RandomNormal(static_cast<size_t>(n), 6);
    std::vector<float> gate = RandomNormal(size, 7);
    gate[0] = 100;
    gate[size - 1] = -100;
    const std::vector<float> squared = RunSquaredRelu(*one_, x, n);
    AssertRelative(squared, RunSquaredRelu(*ref_, x, n), kRoundF32, what + " SquaredRelu");
    AssertRounded(RunSquaredRelu<BF16>(*one_, x, n), squared, what);
    const auto sums = [&](size_t i) {
      return 3 * kRoundF32 * (2 * std::abs(x[i]) + std::abs(y[i]));
    };
    AssertClose(RunAddScaled(*one_, x, -1.7f, y, 0.6f, n),
                RunAddScaled(*ref_, x, -1.7f, y, 0.6f, n), sums, what + " AddScaled");
    // Two roundings.
    const auto biased = [&](size_t i) {
      return 2 * kRoundF32 * 1.7 * (std::abs(x[i]) + std::abs(bias[i % static_cast<size_t>(n)]));
    };
    for (std::span<const float> biases : {std::span<const float>(bias), {}}) {
      AssertClose(RunAddBias(*one_, x, biases, 1.7f, n), RunAddBias(*ref_, x, biases, 1.7f, n),
                  biased, what + " AddBias");
    }
    std::vector<float> garbage(x.size(), std::numeric_limits<float>::quiet_NaN());
    AssertSameBits(RunAddScaled(*one_, garbage, 0, y, 1, n), y, what + " a copy");
    const auto mixed = [&](size_t i) {
      const size_t width = static_cast<size_t>(n), row = i / (2 * width), c = i % (2 * width);
      const double from = std::abs(x[i]);
      return 12 * kRoundF32 * (c < width ? from + std::abs(target[row * width + c]) : 0);
    };
    for (std::span<const float> gates : {std::span<const float>(gate), {}}) {
      AssertClose(RunMix(*one_, x, target, gates, bias), RunMix(*ref_, x, target, gates, bias),
                  mixed, what + " MixTowards");
    }
    for (size_t i = 0; i < x.size(); i += 5) x[i] *= 1000;
    const auto capped = [&](size_t i) {
      return 8 * kRoundF32 * std::min(30.0, std::abs(double{x[i]}));
    };
    AssertClose(RunSoftCap(*one_, x, n), RunSoftCap(*ref_, x, n), capped, what + " SoftCap");
  }
}

TEST_P(NormActTargets, UnitNormAgreesWithReference) {
  for (int64_t n : Widths()) {
    const int n_heads = 3, head_dim = static_cast<int>(n);
    const int64_t stride = n_heads * n + 2;
    const std::vector<float> scale{0.5f, -2, 30};
    const std::vector<float> x = RandomNormal(static_cast<size_t>(kRows * stride), 1);
    for (std::span<const float> scales : {std::span<const float>(scale), {}}) {
      AssertRelative(RunUnitNorm(*one_, x, n_heads, head_dim, stride, scales),
                     RunUnitNorm(*ref_, x, n_heads, head_dim, stride, scales), NormTolerance(n),
                     absl::StrCat("head_dim ", n, " scales ", scales.size()));
    }
  }
}

// The exponential is good to two roundings; a sum, a quotient and two products add one each.
// Below e^-87 a float32 exponential loses bits or becomes zero.
TEST_P(NormActTargets, SwiGluAgreesWithReference) {
  for (int64_t n : Widths()) {
    const std::string what = absl::StrCat("width ", n);
    std::vector<float> gate_up = RandomNormal(static_cast<size_t>(kRows * 2 * n), 3);
    const float extremes[] = {0, 20, -20, 86, -86, 200, -200, -1e30f, 1e30f, -0.0f};
    for (size_t i = 0; i < gate_up.size(); i += 3) gate_up[i] = extremes[i / 3 % 10];
    const std::vector<float> expected = RunSwiGlu(*ref_, gate_up, n);
    const std::vector<float> y = RunSwiGlu(*one_, gate_up, n);
    const auto tolerance = [&](size_t i) {
      const size_t width = static_cast<size_t>(n);
      const float up = gate_up[i / width * 2 * width + width + i % width];
      return 8 * kRoundF32 * std::abs(expected[i]) + 200 * std::exp(-87.0) * std::abs(up);
    };
    AssertClose(y, expected, tolerance, what);
    AssertRounded(RunSwiGlu<BF16>(*one_, gate_up, n), y, what);
  }
}

// Roundings of u, at most 2^-22 |u| together, become relative errors of the exponential.
TEST_P(NormActTargets, GeGluAgreesWithReference) {
  for (int64_t n : Widths()) {
    const std::string what = absl::StrCat("width ", n);
    std::vector<float> gate_up = RandomNormal(static_cast<size_t>(kRows * 2 * n), 3);
    const float extremes[] = {0, 3, -3, 5, -5, 200, -200, -1e30f, 1e30f, -0.0f};
    for (size_t i = 0; i < gate_up.size(); i += 3) gate_up[i] = extremes[i / 3 % 10];
    const std::vector<float> expected = RunSwiGlu(*ref_, gate_up, n, GeGlu);
    const std::vector<float> y = RunSwiGlu(*one_, gate_up, n, GeGlu);
    const auto tolerance = [&](size_t i) {
      const size_t width = static_cast<size_t>(n), row = i / width * 2 * width;
      const float gate = gate_up[row + i % width], up = gate_up[row + width + i % width];
      // The reference's 1 + tanh loses what is below a rounding of 1, in double precision.
      const double u = std::min(std::abs(gate) * 2.0 + 0.08 * std::pow(std::abs(gate), 3), 90.0);
      return (8 + 4 * u) * kRoundF32 * std::abs(expected[i]) +
             200 * std::exp(-87.0) * std::abs(up) + 1e-15 * std::abs(gate * up);
    };
    AssertClose(y, expected, tolerance, what);
    AssertRounded(RunSwiGlu<BF16>(*one_, gate_up, n, GeGlu), y, what);
  }
}

TEST_P(NormActTargets, BFloat16KeepsNanAndInfinity) {
  const float nan = std::bit_cast<float>(0x7fffffffu);  // rounding up would overflow into the sign
  const float max = std::numeric_limits<float>::max();  // rounds to infinity
  std::vector<float> weight(80, 1);
  weight[0] = weight[79] = nan;
  weight[1] = weight[78] = kInfinity;
  weight[2] = weight[77] = -max;
  const std::vector<BF16> y = RunRmsNorm<BF16>(*one_, std::vector<float>(80, 1), weight, 0);
  for (size_t i : {0, 79}) EXPECT_TRUE(std::isnan(ToFloat(y[i]))) << i;
  for (size_t i : {1, 78}) EXPECT_EQ(ToFloat(y[i]), kInfinity) << i;
  for (size_t i : {2, 77}) EXPECT_EQ(ToFloat(y[i]), -kInfinity) << i;
  EXPECT_EQ(ToFloat(y[3]), 1);
}

// Terms of the sum are good to three roundings and their positive sum grows by at most one more a
// term, but roundings of independent terms walk: sqrt(n) of them. The logarithm turns that relative
// error into an absolute one; the result and the logarithm round once each.
TEST_P(NormActTargets, LogSumExpAgreesWithReference) {
  std::vector<int64_t> widths = Widths();
  widths.push_back(10000);
  for (int64_t n : widths) {
    for (float spread : {1.0f, 30.0f}) {
      std::vector<float> x = RandomNormal(static_cast<size_t>(kRows * n), 4);
      for (float& v : x) v = v * spread - 50;
      const std::vector<float> expected = RunLogSumExp(*ref_, x, n);
      const auto tolerance = [&](size_t i) {
        return kRoundF32 * (4 + std::sqrt(static_cast<double>(n)) + 2 * std::abs(expected[i]));
      };
      AssertClose(RunLogSumExp(*one_, x, n), expected, tolerance,
                  absl::StrCat("width ", n, " spread ", spread));
    }
  }
}

// A number that is not finite, anywhere in a row and also among the last elements that fill no
// vector; other rows are unaffected.
TEST_P(NormActTargets, LogSumExpOfWhatIsNotFiniteIsNotANumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t n : {1, 3, 37, 300}) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (int64_t at = 0; at < n; ++at) {
        std::vector<float> x = RandomNormal(static_cast<size_t>(3 * n), 4);
        const std::vector<float> good = RunLogSumExp(*one_, x, n);
        x[static_cast<size_t>(n + at)] = bad;
        const std::vector<float> out = RunLogSumExp(*one_, x, n);
        EXPECT_TRUE(std::isnan(out[1])) << bad << " at " << at << " of " << n;
        EXPECT_EQ(out[0], good[0]);
        EXPECT_EQ(out[2], good[2]);
      }
    }
  }
  std::vector<float> none(37, -kInfinity);
  EXPECT_TRUE(std::isnan(RunLogSumExp(*one_, none, 37)[0]));
}

// Many rows at once on two threads against one row at a time on one, from the last to the first.
// run(context, row values) gives their results, `width` input elements a row.
template <class RunFn>
void AssertRowsIndependent(DeviceContext& one, DeviceContext& two, const std::vector<float>& x,
                           size_t width, const std::string& what, RunFn&& run) {
  const std::vector<float> all = run(two, std::span<const float>(x));
  const size_t n_rows = x.size() / width, out_width = all.size() / n_rows;
  for (size_t row = n_rows; row-- > 0;) {
    AssertSameBits(run(one, std::span(x).subspan(row * width, width)),
                   std::span(all).subspan(row * out_width, out_width),
                   absl::StrCat(what, " width ", width, " row ", row));
  }
}

TEST_P(NormActTargets, RowsDoNotDependOnTheirCompany) {
  const size_t n_rows = GetParam().device == Device::kCuda ? 31 : 401;
  for (size_t width : {262, 256}) {
    const std::vector<float> x = RandomNormal(n_rows * width, 5), weight = RandomNormal(width, 6);
    const auto half = static_cast<int64_t>(width / 2);
    const auto check = [&](const char* what, auto run) {
      AssertRowsIndependent(*one_, *context_, x, width, what, run);
    };
    check("RmsNorm", [&](DeviceContext& context, std::span<const float> rows) {
      return RunRmsNorm(context, rows, weight, 1e-6f);
    });
    check("UnitNorm", [&](DeviceContext& context, std::span<const float> rows) {
      return RunUnitNorm(context, rows, 2, static_cast<int>(half), 2 * half, weight);
    });
    check("LayerNorm", [&](DeviceContext& context, std::span<const float> rows) {
      return RunLayerNorm(context, rows, weight, weight);
    });
    check("HeadNorm", [&](DeviceContext& context, std::span<const float> rows) {
      return RunHeadNorm(context, HeadNorm::kLayer, rows, weight);
    });
    check("SquaredRelu", [&](DeviceContext& context, std::span<const float> rows) {
      return RunSquaredRelu(context, rows, 2 * half);
    });
    check("SoftCap", [&](DeviceContext& context, std::span<const float> rows) {
      return RunSoftCap(context, rows, 2 * half);
    });
    check("SwiGlu", [&](DeviceContext& context, std::span<const float> rows) {
      return RunSwiGlu(context, rows, half);
    });
    check("GeGlu", [&](DeviceContext& context, std::span<const float> rows) {
      return RunSwiGlu(context, rows, half, GeGlu);
    });
    check("LogSumExp", [&](DeviceContext& context, std::span<const float> rows) {
      return RunLogSumExp(context, rows, 2 * half);
    });
  }
}

}  // namespace
}  // namespace ovq::kernels
