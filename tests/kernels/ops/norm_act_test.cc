#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::DeviceArray;
using test::kRoundF32;
using test::MakeContext;
using test::RandomNormal;
using test::ViewOf;

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

// The reference is one context; what is tested runs in two others, with one thread and with two.
// A CPU runs once for each of its instruction sets.
struct Target {
  Device device;
  int64_t instructions;  // of Highway, kCpu only
};
std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (int64_t target : test::HighwayTargets()) targets.push_back({Device::kCpu, target});
  for (Device device : test::TestDevices()) {
    if (device == Device::kCuda) targets.push_back({device, 0});
  }
  return targets;
}

class NormActTargets : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    const std::string why_not = test::WhyNoDevice(GetParam().device);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    if (GetParam().device == Device::kCpu) instructions_.emplace(GetParam().instructions);
    one_ = MakeContext(GetParam().device, 1);
    two_ = MakeContext(GetParam().device, 2);
  }
  std::optional<test::ScopedHighwayTarget> instructions_;
  std::unique_ptr<DeviceContext> ref_ = MakeContext(Device::kReference);
  std::unique_ptr<DeviceContext> one_;
  std::unique_ptr<DeviceContext> two_;
};
INSTANTIATE_TEST_SUITE_P(, NormActTargets, testing::ValuesIn(Targets()), [](const auto& info) {
  return info.param.device == Device::kCpu ? test::HighwayTargetName(info.param.instructions)
                                           : DeviceName(info.param.device);
});

// The operations on values of the host. T is the type of the result.
template <class T = float>
std::vector<T> RunRmsNorm(DeviceContext& context, std::span<const float> x,
                          std::span<const float> weight, float eps,
                          std::span<const int32_t> rows = {}) {
  const auto width = static_cast<int64_t>(weight.size());
  const int64_t n = static_cast<int64_t>(x.size()) / width;
  const int64_t n_out = rows.empty() ? n : static_cast<int64_t>(rows.size());
  const DeviceArray<float> in(context, x), w(context, weight);
  const DeviceArray<int32_t> row_list(context, rows);
  const DeviceArray<T> y(context, static_cast<size_t>(n_out * width));
  RmsNorm(context, in.View({n, width}), w.View({width}), eps, y.View({n_out, width}),
          row_list.span());
  return y.Read();
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
std::vector<T> RunSwiGlu(DeviceContext& context, std::span<const float> gate_up, int64_t width) {
  const int64_t n = static_cast<int64_t>(gate_up.size()) / (2 * width);
  const DeviceArray<float> in(context, gate_up);
  const DeviceArray<T> y(context, static_cast<size_t>(n * width));
  SwiGlu(context, in.View({n, 2 * width}), y.View({n, width}));
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
  RmsNorm(*context, ViewOf(x, {1, 4}), ViewOf(weight, {4}), 0, ViewOf(y, {1, 4}));
  EXPECT_EQ(y, (std::vector<float>{1.2f, -3.2f, 0, 0}));
  RmsNorm(*context, ViewOf(x, {1, 4}), ViewOf(weight, {4}), 93.75f, ViewOf(y, {1, 4}));
  EXPECT_EQ(y, (std::vector<float>{0.3f, -0.8f, 0, 0}));
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

TEST(NormActReference, SwiGluByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> gate_up{0, 1, 7, 2};  // [gate gate | up up]
  std::vector<float> y(2);
  SwiGlu(*context, ViewOf(gate_up, {1, 4}), ViewOf(y, {1, 2}));
  EXPECT_EQ(y[0], 0);
  EXPECT_FLOAT_EQ(y[1], 1.4621172f);  // 2 / (1 + 1/e)
}

TEST(NormActReference, LogSumExpByHand) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> x{1000, 1000, -kInfinity, -kInfinity};
  std::vector<float> out(2);
  LogSumExp(*context, ViewOf(x, {2, 2}), out.data());
  EXPECT_FLOAT_EQ(out[0], 1000.6931f);
  EXPECT_EQ(out[1], -kInfinity);
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
      if (n > 2) x[1] = -kInfinity;
      const std::vector<float> expected = RunLogSumExp(*ref_, x, n);
      const auto tolerance = [&](size_t i) {
        return kRoundF32 * (4 + std::sqrt(static_cast<double>(n)) + 2 * std::abs(expected[i]));
      };
      AssertClose(RunLogSumExp(*one_, x, n), expected, tolerance,
                  absl::StrCat("width ", n, " spread ", spread));
    }
  }
}

TEST_P(NormActTargets, LogSumExpOfInfinities) {
  std::vector<float> x(3 * 37, -kInfinity);
  x[37 + 20] = kInfinity;
  x[2 * 37 + 36] = 5;
  EXPECT_EQ(RunLogSumExp(*one_, x, 37), (std::vector<float>{-kInfinity, kInfinity, 5}));
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
      AssertRowsIndependent(*one_, *two_, x, width, what, run);
    };
    check("RmsNorm", [&](DeviceContext& context, std::span<const float> rows) {
      return RunRmsNorm(context, rows, weight, 1e-6f);
    });
    check("UnitNorm", [&](DeviceContext& context, std::span<const float> rows) {
      return RunUnitNorm(context, rows, 2, static_cast<int>(half), 2 * half, weight);
    });
    check("SwiGlu", [&](DeviceContext& context, std::span<const float> rows) {
      return RunSwiGlu(context, rows, half);
    });
    check("LogSumExp", [&](DeviceContext& context, std::span<const float> rows) {
      return RunLogSumExp(context, rows, 2 * half);
    });
  }
}

}  // namespace
}  // namespace ovq
