// WeightType::kInt8.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

using test::AssertSameBits;
using test::MakeContext;
using test::MakeView;
using test::RandomNormal;

Linear MakeInt8(std::span<const TensorView> parts, DType compute, DeviceContext& context) {
  absl::StatusOr<Linear> linear = Linear::Make(parts, {compute, WeightType::kInt8}, context);
  EXPECT_TRUE(linear.ok()) << linear.status();
  return *std::move(linear);
}

// Rows [first, first + n) of x [rows, in] in the compute type, times the weights; added to `before`
// unless that is empty.
std::vector<float> Rows(const Linear& linear, DeviceContext& context, const std::vector<float>& x,
                        DType compute, int64_t first, int64_t n,
                        std::span<const float> before = {}) {
  const auto begin = x.begin() + first * linear.in();
  std::vector<float> wide(begin, begin + n * linear.in());
  std::vector<BF16> narrow = test::Rounded(wide);
  const Shape shape = {n, linear.in()};
  test::GuardedBuffer<float> y(static_cast<size_t>(n * linear.out()));
  std::ranges::copy(before, y.data());
  linear.Apply(context, compute == DType::kF32 ? MakeView(wide, shape) : MakeView(narrow, shape),
               y.View({n, linear.out()}), !before.empty());
  return {y.span().begin(), y.span().end()};
}

TEST(Int8Reference, HandComputed) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> w{2, -254, 1,   // scale 2: 1, -127, 0.5 (to even: 0)
                       3, 127,  0};  // scale 1
  const TensorView part = MakeView(w, {2, 3});
  const Linear linear = MakeInt8({&part, 1}, DType::kF32, *context);
  const std::vector<float> x{63.5, 1, 0,   // scale 0.5: 127, 2, 0
                             0,    0, 0};  // zeros
  EXPECT_EQ(Rows(linear, *context, x, DType::kF32, 0, 2),
            (std::vector<float>{(127 - 2 * 127) * 0.5f * 2, (3 * 127 + 2 * 127) * 0.5f, 0, 0}));
  const std::vector<float> ones(4, 1);
  EXPECT_EQ(
      Rows(linear, *context, x, DType::kF32, 0, 2, ones),
      (std::vector<float>{1 + (127 - 2 * 127) * 0.5f * 2, 1 + (3 * 127 + 2 * 127) * 0.5f, 1, 1}));
}

// Rounding moves an element of x by at most half of r(x), and one of w by half of r(w), but for
// what float32 adds to that: |sum x w - sum x' w'| <= |x|_1 r(w) / 2 + |w'|_1 r(x) / 2.
TEST(Int8Reference, IsAsCloseAsItsScalesAllow) {
  constexpr int64_t kIn = 300, kOut = 40, kRows = 5;
  auto context = MakeContext(Device::kReference);
  std::vector<float> w = RandomNormal(kIn * kOut, 1);
  const std::vector<float> x = RandomNormal(kIn * kRows, 2);
  const TensorView part = MakeView(w, {kOut, kIn});
  const Linear linear = MakeInt8({&part, 1}, DType::kF32, *context);
  const std::vector<float> y = Rows(linear, *context, x, DType::kF32, 0, kRows);
  const auto largest = [](std::span<const float> row) {
    return std::abs(*std::ranges::max_element(row, {}, [](float v) { return std::abs(v); }));
  };
  const auto absolute = [](std::span<const float> row) {
    return std::accumulate(row.begin(), row.end(), 0.0,
                           [](double sum, float v) { return sum + std::abs(v); });
  };
  for (int64_t i = 0; i < kRows; ++i) {
    const auto x_row = std::span(x).subspan(static_cast<size_t>(i * kIn), kIn);
    for (int64_t o = 0; o < kOut; ++o) {
      const auto w_row = std::span(w).subspan(static_cast<size_t>(o * kIn), kIn);
      const double exact = std::inner_product(x_row.begin(), x_row.end(), w_row.begin(), 0.0);
      const double r_w = largest(w_row) / 127.0, r_x = largest(x_row) / 127.0;
      const double bound = absolute(x_row) * r_w / 2 + (absolute(w_row) + kIn * r_w / 2) * r_x / 2;
      // Factors and products in float32: a few roundings of each element's 127 at most.
      EXPECT_NEAR(y[static_cast<size_t>(i * kOut + o)], exact, bound * (1 + 1e-4));
    }
  }
}

TEST(Int8, RefusesWhatItHasNoSumsFor) {
  auto context = MakeContext(Device::kCpu);
  std::vector<float> w(kMaxInt8Inputs + 1, 1);
  const TensorView most = {w.data(), DType::kF32, {1, kMaxInt8Inputs}};
  const TensorView more = {w.data(), DType::kF32, {1, kMaxInt8Inputs + 1}};
  const ProductTypes types(DType::kF32, WeightType::kInt8);
  EXPECT_TRUE(Linear::Make({&most, 1}, types, *context).ok());
  const absl::Status status = Linear::Make({&more, 1}, types, *context).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "int8 weights: expected at most 65536 inputs of a product, got 65537");
}

// The CPU on every instruction set of this machine; the choice of sums is Linear's.
class Int8Test : public testing::TestWithParam<std::tuple<int64_t, DType>> {
 protected:
  test::ScopedHighwayTarget target_{std::get<0>(GetParam())};
  DType dtype_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, Int8Test,
                         testing::Combine(testing::ValuesIn(test::HighwayTargets()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& info) {
                           return absl::StrCat(test::HighwayTargetName(std::get<0>(info.param)),
                                               DTypeName(std::get<1>(info.param)));
                         });

// To the bit: any number of rows at a time, one thread and two.
TEST_P(Int8Test, AgreesWithReference) {
  constexpr int64_t kRows = 520;  // more than one call of the sums takes
  auto ref = MakeContext(Device::kReference);
  auto one = MakeContext(Device::kCpu, 1), two = MakeContext(Device::kCpu, 2);
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1, 1}, {7, 33}, {513, 40}, {1100, 5}}) {
    const auto elements = static_cast<size_t>(in * out);
    std::vector<float> w = RandomNormal(elements, 1);
    std::vector<BF16> w_bf16 = test::Rounded(RandomNormal(elements, 2));
    const TensorView parts[] = {MakeView(w, {out, in}), MakeView(w_bf16, {out, in})};
    const std::vector<float> x = RandomNormal(static_cast<size_t>(kRows * in), 3);
    const Linear expected_linear = MakeInt8(parts, dtype_, *ref);
    const std::vector<float> expected = Rows(expected_linear, *ref, x, dtype_, 0, kRows);
    const std::vector<float> added = Rows(expected_linear, *ref, x, dtype_, 0, kRows, expected);
    for (DeviceContext* cpu : {one.get(), two.get()}) {
      const Linear linear = MakeInt8(parts, dtype_, *cpu);
      EXPECT_GE(linear.bytes(), 2 * elements);
      for (const int64_t n : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{33}, kRows}) {
        const int64_t first = (kRows - n) / 2;
        const auto rows = [&](const std::vector<float>& all) {
          return std::span(all).subspan(static_cast<size_t>(first * 2 * out),
                                        static_cast<size_t>(n * 2 * out));
        };
        const std::string what = absl::StrCat("in ", in, " out ", out, " rows ", n);
        AssertSameBits(Rows(linear, *cpu, x, dtype_, first, n), rows(expected), what);
        AssertSameBits(Rows(linear, *cpu, x, dtype_, first, n, rows(expected)), rows(added), what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A row that is not finite is NaN and leaves the others alone; tiny ones are zeros.
TEST_P(Int8Test, RowsThatHaveNoScale) {
  constexpr int64_t kIn = 37, kOut = 20;
  auto context = MakeContext(Device::kCpu, 2);
  std::vector<float> w = RandomNormal(kIn * kOut, 1);
  const TensorView part = MakeView(w, {kOut, kIn});
  const Linear linear = MakeInt8({&part, 1}, dtype_, *context);
  const std::vector<float> good = RandomNormal(kIn, 2);
  const std::vector<float> expected = Rows(linear, *context, good, dtype_, 0, 1);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float odd : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t place : {0, 16, 36}) {
      std::vector<float> x = good;
      x.insert(x.end(), good.begin(), good.end());
      x[place] = odd;
      const std::vector<float> y = Rows(linear, *context, x, dtype_, 0, 2);
      for (size_t o = 0; o < kOut; ++o) EXPECT_TRUE(std::isnan(y[o])) << odd << " at " << place;
      AssertSameBits(std::span(y).subspan(kOut), expected, "the row beside it");
    }
  }
  std::vector<float> tiny(kIn, 1e-40f);
  EXPECT_EQ(Rows(linear, *context, tiny, dtype_, 0, 1), std::vector<float>(kOut, 0));
}

// Rows of x: as large and as small as they can be, and some of all kinds.
std::vector<int> SumRows(int64_t n, int64_t in) {
  std::vector<int> x(static_cast<size_t>(n * in));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / in;
    const auto mixed = static_cast<int>((i * 2654435761u >> 8) % 255) - 127;
    x[i] = row == 0 ? 127 : row == 1 ? -127 : mixed;
  }
  return x;
}
// All of them as large as they can be in the first output, as small in the second, some in between
// in the others.
Int8Weights Extremes(int64_t in, int64_t out) {
  Int8Weights weights{in, out, {}, std::vector<float>(static_cast<size_t>(out), 1)};
  for (int64_t i = 0; i < in * out; ++i) {
    const auto mixed = static_cast<int8_t>(i * 40503 % 255 - 127);
    weights.values.push_back(i < in ? 127 : i < 2 * in ? -127 : mixed);
  }
  return weights;
}
std::vector<int64_t> ExactSums(const Int8Weights& weights, const std::vector<int>& x, int offset) {
  std::vector<int64_t> sums;
  for (int64_t row = 0; row < static_cast<int64_t>(x.size()) / weights.in; ++row) {
    for (int64_t o = 0; o < weights.out; ++o) {
      int64_t sum = 0;
      for (int64_t i = 0; i < weights.in; ++i) {
        sum += int64_t{x[static_cast<size_t>(row * weights.in + i)] + offset} *
               weights.values[static_cast<size_t>(o * weights.in + i)];
      }
      sums.push_back(sum);
    }
  }
  return sums;
}
// The sums that `use` gets: each once, in parts of 1 to 1,024.
std::vector<int64_t> Sums(DeviceContext& context, const cpu::Int8Sums& sums,
                          const std::vector<int>& x, int64_t n, int64_t out) {
  std::vector<std::byte> bytes;
  for (const int value : x) bytes.push_back(static_cast<std::byte>(value + sums.offset));
  std::vector<int64_t> all(static_cast<size_t>(n * out));
  std::vector<std::atomic<int>> times(all.size());
  sums.apply(
      context, bytes.data(), n, [&](int64_t row, int64_t output, std::span<const int32_t> part) {
        EXPECT_TRUE(row >= 0 && row < n && output >= 0 && !part.empty() && part.size() <= 1024 &&
                    output + static_cast<int64_t>(part.size()) <= out);
        for (size_t i = 0; i < part.size(); ++i) {
          const size_t at = static_cast<size_t>(row * out + output) + i;
          all[at] = part[i];
          ++times[at];
        }
      });
  for (const std::atomic<int>& count : times) EXPECT_EQ(count, 1);
  return all;
}
void AssertExact(DeviceContext& context, const cpu::Int8Sums& sums, const Int8Weights& weights,
                 int64_t n) {
  const std::vector<int> x = SumRows(n, weights.in);
  const std::vector<int64_t> expected = ExactSums(weights, x, sums.offset),
                             actual = Sums(context, sums, x, n, weights.out);
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    ASSERT_EQ(actual[i], expected[i])
        << sums.kernel << ", row " << at / weights.out << " of " << n << ", output "
        << at % weights.out << " of " << weights.out << ", " << weights.in << " inputs";
  }
}

// Every number of rows that a tile may have and more than a task takes, inputs that fill no vector
// or just one, outputs that fill no tile, one and more than a task takes.
TEST(SimdSums, AreExact) {
  auto one = MakeContext(Device::kCpu, 1), two = MakeContext(Device::kCpu, 2);
  for (const int64_t target : test::HighwayTargets()) {
    const test::ScopedHighwayTarget scoped(target);
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1, 3},
                                  {15, 8},
                                  {16, 9},
                                  {31, 1},
                                  {32, 70},
                                  {33, 17},
                                  {64, 131},
                                  {513, 33},
                                  {1300, 40}}) {
      const Int8Weights weights = Extremes(in, out);
      const cpu::Int8Sums sums = cpu::MakeSimdSums(weights);
      EXPECT_GE(sums.bytes, weights.values.size());
      for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 24, 25, 48, 101}) {
        AssertExact(n % 2 == 0 ? *one : *two, sums, weights, n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(SimdSums, AreExactWithTheMostInputs) {
  auto context = MakeContext(Device::kCpu, 2);
  for (const int64_t target : test::HighwayTargets()) {
    const test::ScopedHighwayTarget scoped(target);
    const Int8Weights weights = Extremes(kMaxInt8Inputs, 2);
    for (const int64_t n : {1, 7}) {
      AssertExact(*context, cpu::MakeSimdSums(weights), weights, n);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(OneDnnSums, AreExact) {
  auto context = MakeContext(Device::kCpu, 2);
  for (const auto& [in, out] :
       {std::pair<int64_t, int64_t>{64, 3}, {512, 33}, {1300, 40}, {kMaxInt8Inputs, 2}}) {
    const Int8Weights weights = Extremes(in, out);
    const std::optional<cpu::Int8Sums> sums = cpu::MakeOneDnnSums(*context, weights);
    if (!sums) GTEST_SKIP() << "oneDNN has no sums of bytes here";
    AssertExact(*context, *sums, weights, 9);
    if (HasFatalFailure()) return;
  }
}

// Every instruction set gives the bits of oneDNN's sums, which Linear prefers.
TEST(SimdSums, MakeTheProductThatOneDnnMakes) {
  constexpr int64_t kIn = 200, kOut = 1030, kRows = 60;
  auto context = MakeContext(Device::kCpu, 2);
  std::vector<float> w = RandomNormal(kIn * kOut, 1), x = RandomNormal(kRows * kIn, 2);
  const TensorView part = MakeView(w, {kOut, kIn});
  const Int8Weights weights = RoundToInt8({{&part, 1}, kIn, kOut, DType::kF32});
  std::optional<cpu::Int8Sums> sums = cpu::MakeOneDnnSums(*context, weights);
  if (!sums) GTEST_SKIP() << "oneDNN has no sums of bytes here";
  const auto run = [&](const Product& product) {
    std::vector<float> y(kRows * kOut, 1);
    product.apply(*context, MakeView(x, {kRows, kIn}), MakeView(y, {kRows, kOut}), true);
    return y;
  };
  const std::vector<float> expected = run(cpu::WithSums(weights, *std::move(sums)));
  for (const int64_t target : test::HighwayTargets()) {
    const test::ScopedHighwayTarget scoped(target);
    AssertSameBits(run(cpu::WithSums(weights, cpu::MakeSimdSums(weights))), expected,
                   test::HighwayTargetName(target));
  }
}

}  // namespace
}  // namespace ovq::kernels
