#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::GuardedBuffer;
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

class NormActTargets : public testing::TestWithParam<int64_t> {
 protected:
  test::ScopedHighwayTarget target_{GetParam()};
  std::unique_ptr<DeviceContext> ref_ = MakeContext(Device::kReference);
  std::unique_ptr<DeviceContext> one_ = MakeContext(Device::kCpu, 1);
  std::unique_ptr<DeviceContext> two_ = MakeContext(Device::kCpu, 2);
};
INSTANTIATE_TEST_SUITE_P(, NormActTargets, testing::ValuesIn(test::HighwayTargets()),
                         [](const auto& info) { return test::HighwayTargetName(info.param); });

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
  UnitNorm(*context, {x.data(), 2, 1, 2, 3}, &scale);
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
    std::vector<float> x = RandomNormal(static_cast<size_t>(kRows * n), 1);
    std::vector<float> weight = RandomNormal(static_cast<size_t>(n), 2);
    std::vector<float> expected(x.size());
    GuardedBuffer<float> y(x.size());
    GuardedBuffer<BF16> narrow(x.size());
    const TensorView x_view = ViewOf(x, {kRows, n});
    RmsNorm(*ref_, x_view, ViewOf(weight, {n}), 1e-5f, ViewOf(expected, {kRows, n}));
    RmsNorm(*one_, x_view, ViewOf(weight, {n}), 1e-5f, y.View({kRows, n}));
    RmsNorm(*one_, x_view, ViewOf(weight, {n}), 1e-5f, narrow.View({kRows, n}));
    AssertRelative(y.span(), expected, NormTolerance(n), what);
    AssertRounded(narrow.span(), y.span(), what);
  }
}

TEST_P(NormActTargets, UnitNormAgreesWithReference) {
  for (int64_t n : Widths()) {
    const int n_heads = 3;
    const int64_t stride = n_heads * n + 2;
    const std::vector<float> scale{0.5f, -2, 30};
    std::vector<float> expected = RandomNormal(static_cast<size_t>(kRows * stride), 1);
    GuardedBuffer<float> x{std::span<const float>(expected)};
    const int head_dim = static_cast<int>(n);
    UnitNorm(*ref_, {expected.data(), kRows, n_heads, head_dim, stride}, scale.data());
    UnitNorm(*one_, {x.data(), kRows, n_heads, head_dim, stride}, scale.data());
    AssertRelative(x.span(), expected, NormTolerance(n), absl::StrCat("head_dim ", n));
    UnitNorm(*ref_, {expected.data(), kRows, n_heads, head_dim, stride}, nullptr);
    UnitNorm(*one_, {x.data(), kRows, n_heads, head_dim, stride}, nullptr);
    AssertRelative(x.span(), expected, 2 * NormTolerance(n), absl::StrCat("no scale ", n));
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
    std::vector<float> expected(static_cast<size_t>(kRows * n));
    GuardedBuffer<float> y(expected.size());
    GuardedBuffer<BF16> narrow(expected.size());
    SwiGlu(*ref_, ViewOf(gate_up, {kRows, 2 * n}), ViewOf(expected, {kRows, n}));
    SwiGlu(*one_, ViewOf(gate_up, {kRows, 2 * n}), y.View({kRows, n}));
    SwiGlu(*one_, ViewOf(gate_up, {kRows, 2 * n}), narrow.View({kRows, n}));
    const auto tolerance = [&](size_t i) {
      const size_t width = static_cast<size_t>(n);
      const float up = gate_up[i / width * 2 * width + width + i % width];
      return 8 * kRoundF32 * std::abs(expected[i]) + 200 * std::exp(-87.0) * std::abs(up);
    };
    AssertClose(y.span(), expected, tolerance, what);
    AssertRounded(narrow.span(), y.span(), what);
  }
}

TEST_P(NormActTargets, BFloat16KeepsNanAndInfinity) {
  const float nan = std::bit_cast<float>(0x7fffffffu);  // rounding up would overflow into the sign
  const float max = std::numeric_limits<float>::max();  // rounds to infinity
  std::vector<float> x(80, 1);
  std::vector<float> weight(80, 1);
  weight[0] = weight[79] = nan;
  weight[1] = weight[78] = kInfinity;
  weight[2] = weight[77] = -max;
  GuardedBuffer<BF16> y(x.size());
  RmsNorm(*one_, ViewOf(x, {1, 80}), ViewOf(weight, {80}), 0, y.View({1, 80}));
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
      std::vector<float> expected(kRows);
      GuardedBuffer<float> y(kRows);
      LogSumExp(*ref_, ViewOf(x, {kRows, n}), expected.data());
      LogSumExp(*one_, ViewOf(x, {kRows, n}), y.data());
      const auto tolerance = [&](size_t i) {
        return kRoundF32 * (4 + std::sqrt(static_cast<double>(n)) + 2 * std::abs(expected[i]));
      };
      AssertClose(y.span(), expected, tolerance, absl::StrCat("width ", n, " spread ", spread));
    }
  }
}

TEST_P(NormActTargets, LogSumExpOfInfinities) {
  std::vector<float> x(3 * 37, -kInfinity);
  x[37 + 20] = kInfinity;
  x[2 * 37 + 36] = 5;
  std::vector<float> out(3);
  LogSumExp(*one_, ViewOf(x, {3, 37}), out.data());
  EXPECT_EQ(out, (std::vector<float>{-kInfinity, kInfinity, 5}));
}

// Many rows at once on two threads against one row at a time on one, from the last to the first.
TEST_P(NormActTargets, RowsDoNotDependOnTheirCompany) {
  constexpr int64_t kMany = 401;
  constexpr int64_t kWidth = 262;
  std::vector<float> x = RandomNormal(kMany * kWidth, 5);
  std::vector<float> weight = RandomNormal(kWidth, 6);
  const auto row_of = [](std::vector<float>& m, int64_t row, int64_t width) {
    return TensorView{m.data() + row * width, DType::kF32, {1, width}};
  };
  const TensorView w = ViewOf(weight, {kWidth});
  std::vector<float> all(x.size()), single(x.size());
  RmsNorm(*two_, ViewOf(x, {kMany, kWidth}), w, 1e-6f, ViewOf(all, {kMany, kWidth}));
  for (int64_t r = kMany - 1; r >= 0; --r) {
    RmsNorm(*one_, row_of(x, r, kWidth), w, 1e-6f, row_of(single, r, kWidth));
  }
  AssertSameBits(all, single, "RmsNorm");

  all = single = x;
  UnitNorm(*two_, {all.data(), kMany, 2, kWidth / 2, kWidth}, weight.data());
  for (int64_t r = kMany - 1; r >= 0; --r) {
    UnitNorm(*one_, {single.data() + r * kWidth, 1, 2, kWidth / 2, kWidth}, weight.data());
  }
  AssertSameBits(all, single, "UnitNorm");

  all.assign(x.size() / 2, 0);
  single = all;
  SwiGlu(*two_, ViewOf(x, {kMany, kWidth}), ViewOf(all, {kMany, kWidth / 2}));
  for (int64_t r = kMany - 1; r >= 0; --r) {
    SwiGlu(*one_, row_of(x, r, kWidth), row_of(single, r, kWidth / 2));
  }
  AssertSameBits(all, single, "SwiGlu");

  all.assign(kMany, 0);
  single = all;
  LogSumExp(*two_, ViewOf(x, {kMany, kWidth}), all.data());
  for (int64_t r = kMany - 1; r >= 0; --r) {
    LogSumExp(*one_, row_of(x, r, kWidth), single.data() + r);
  }
  AssertSameBits(all, single, "LogSumExp");
}

}  // namespace
}  // namespace ovq
