#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::GuardedBuffer;
using test::MakeContext;
using test::RandomNormal;
using test::ViewOf;

// Activations of a compute type; the float copy holds the same (rounded) values.
struct Activations {
  Activations(int64_t n, int64_t in, DType type, uint64_t seed) : in(in), dtype(type) {
    wide = RandomNormal(static_cast<size_t>(n * in), seed);
    narrow = test::Rounded(wide);
    if (dtype == DType::kBF16) wide = test::Widened(narrow);
  }
  TensorView Rows(int64_t first, int64_t n) {
    const auto from = static_cast<size_t>(first * in);
    if (dtype == DType::kF32) return {wide.data() + from, dtype, {n, in}};
    return {narrow.data() + from, dtype, {n, in}};
  }
  int64_t in;
  DType dtype;
  std::vector<float> wide;
  std::vector<BF16> narrow;
};

Linear MakeLinear(std::span<const TensorView> parts, DType compute, DeviceContext& context) {
  absl::StatusOr<Linear> linear = Linear::Make(parts, compute, context);
  EXPECT_TRUE(linear.ok()) << linear.status();
  return *std::move(linear);
}

double Norm(std::span<const float> x) {
  double sum = 0;
  for (float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

// A sum of K products of independent terms walks at random: its partial sums stay around
// |x| |w| / sqrt(K), each of the K additions rounds one of them, and the roundings walk too, which
// makes |x| |w| u / sqrt(2) the standard deviation of the error of the slowest order, one chain.
// Eight of them (and one rounding of the result) hold for the largest of 10^5 elements.
void AssertProductClose(std::span<const float> actual, std::span<const float> expected,
                        const std::vector<float>& x, const std::vector<float>& w, int64_t in,
                        const std::string& what) {
  const int64_t out = static_cast<int64_t>(w.size()) / in;
  const auto row = [in](const std::vector<float>& m, int64_t r) {
    return std::span(m).subspan(static_cast<size_t>(r * in), static_cast<size_t>(in));
  };
  const auto tolerance = [&](size_t i) {
    const auto at = static_cast<int64_t>(i);
    return test::kRoundF32 *
           (8 * Norm(row(x, at / out)) * Norm(row(w, at % out)) + std::abs(expected[i]));
  };
  AssertClose(actual, expected, tolerance, what);
}

class ComputeTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, ComputeTypes, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(LinearReference, HandComputed) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> w1{1, 2, 3, 4};  // [2, 2]
  std::vector<float> w2{-1, 0.5};     // [1, 2]
  const TensorView parts[] = {ViewOf(w1, {2, 2}), ViewOf(w2, {1, 2})};
  const Linear linear = MakeLinear(parts, DType::kF32, *context);
  EXPECT_EQ(linear.in(), 2);
  EXPECT_EQ(linear.out(), 3);
  std::vector<float> x{1, 10, 2, -4};
  std::vector<float> y(6, 100);
  linear.Apply(*context, ViewOf(x, {2, 2}), ViewOf(y, {2, 3}));
  EXPECT_EQ(y, (std::vector<float>{21, 43, 4, -6, -10, -4}));
  linear.Apply(*context, ViewOf(x, {2, 2}), ViewOf(y, {2, 3}), true);
  EXPECT_EQ(y, (std::vector<float>{42, 86, 8, -12, -20, -8}));
}

// 1 + 2^-8 lies halfway between two bfloat16 values; the even one is 1.
TEST(LinearReference, WeightsAreRoundedToTheComputeType) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> w{1 + 0x1p-8f, 1 + 3 * 0x1p-8f};
  const TensorView part = ViewOf(w, {2, 1});
  const Linear linear = MakeLinear({&part, 1}, DType::kBF16, *context);
  std::vector<BF16> x{RoundToBF16(1)};
  std::vector<float> y(2);
  linear.Apply(*context, ViewOf(x, {1, 1}), ViewOf(y, {1, 2}));
  EXPECT_EQ(y, (std::vector<float>{1, 1 + 0x1p-6f}));
}

TEST(Linear, RefusesWeightsThatDoNotFit) {
  auto context = MakeContext(Device::kCpu);
  std::vector<float> w(12);
  const TensorView good = ViewOf(w, {3, 4});
  const TensorView other = ViewOf(w, {4, 3});
  const TensorView flat = ViewOf(w, {12});
  const TensorView integers{w.data(), DType::kI32, {3, 4}};
  const auto code = [&](std::vector<TensorView> parts, DType compute) {
    return Linear::Make(parts, compute, *context).status().code();
  };
  EXPECT_EQ(code({good, good}, DType::kF32), absl::StatusCode::kOk);
  EXPECT_EQ(code({}, DType::kF32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({good, other}, DType::kF32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({flat}, DType::kF32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({integers}, DType::kF32), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({good}, DType::kF16), absl::StatusCode::kInvalidArgument);
}

// Every weight type, stacked; shapes with all kinds of remainders; both modes.
TEST_P(ComputeTypes, CpuAgreesWithReference) {
  auto ref = MakeContext(Device::kReference);
  auto cpu = MakeContext(Device::kCpu, 2);
  for (int64_t in : {1, 2, 3, 32, 33, 100, 256, 2304}) {
    for (int64_t out : {1, 5, 31, 96, 101, 258}) {
      const int64_t n = 13;
      const std::string what = absl::StrCat("in ", in, " out ", out);
      const auto elements = static_cast<size_t>(in * out);
      std::vector<float> w = RandomNormal(elements, 1);
      std::vector<BF16> w_bf16 = test::Rounded(RandomNormal(elements, 2));
      std::vector<uint16_t> w_f16(elements);
      for (size_t i = 0; i < elements; ++i)
        w_f16[i] = static_cast<uint16_t>(0x3000 + i * 37 % 4096);
      const TensorView parts[] = {ViewOf(w, {out, in}), ViewOf(w_bf16, {out, in}),
                                  ViewOf(w_f16, {out, in})};
      const Linear expected_linear = MakeLinear(parts, GetParam(), *ref);
      const Linear linear = MakeLinear(parts, GetParam(), *cpu);
      ASSERT_EQ(linear.out(), 3 * out);
      ASSERT_GE(linear.bytes(), 3 * elements * DTypeBytes(GetParam()));

      std::vector<float> all = w;
      for (BF16 v : w_bf16) all.push_back(ToFloat(v));
      for (uint16_t v : w_f16) all.push_back(HalfToFloat(v));
      Activations x(n, in, GetParam(), 3);
      std::vector<float> expected(static_cast<size_t>(n * 3 * out));
      GuardedBuffer<float> y(expected.size());
      for (bool accumulate : {false, true}) {
        expected_linear.Apply(*ref, x.Rows(0, n), ViewOf(expected, {n, 3 * out}), accumulate);
        linear.Apply(*cpu, x.Rows(0, n), y.View({n, 3 * out}), accumulate);
        AssertProductClose(y.span(), expected, x.wide, all, in, what);
        std::copy(expected.begin(), expected.end(), y.data());
      }
    }
  }
}

// A row's bits for n rows from the middle of a long call, 1 and 2 threads, against the same rows of
// that long call. ApplyFn is Linear::Apply or a product's.
template <class ApplyFn>
void AssertRowsIndependent(int64_t in, int64_t out, DType dtype, const std::string& what,
                           ApplyFn&& apply) {
  constexpr int64_t kRows = 512;
  auto one = MakeContext(Device::kCpu, 1);
  auto two = MakeContext(Device::kCpu, 2);
  Activations x(kRows, in, dtype, 5);
  const std::vector<float> before = RandomNormal(static_cast<size_t>(kRows * out), 6);
  for (bool accumulate : {false, true}) {
    std::vector<float> expected = before;
    apply(*one, x.Rows(0, kRows), ViewOf(expected, {kRows, out}), accumulate);
    for (DeviceContext* context : {one.get(), two.get()}) {
      for (int64_t n : {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 128, 200, 512}) {
        const int64_t first = (kRows - n) / 3;
        const auto from = static_cast<size_t>(first * out);
        const auto elements = static_cast<size_t>(n * out);
        GuardedBuffer<float> y{std::span<const float>(before).subspan(from, elements)};
        apply(*context, x.Rows(first, n), y.View({n, out}), accumulate);
        AssertSameBits(y.span(), std::span(expected).subspan(from, elements),
                       absl::StrCat(what, " in ", in, " out ", out, " rows ", n, " threads ",
                                    context->n_threads(), " accumulate ", accumulate));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(ComputeTypes, RowsDoNotDependOnTheirCompany) {
  auto context = MakeContext(Device::kCpu, 2);
  std::vector<std::pair<int64_t, int64_t>> shapes = {{768, 10000}};
  for (int64_t in : {32, 64, 256, 768, 2304}) {
    for (int64_t out : {32, 96, 101, 258, 768}) shapes.emplace_back(in, out);
  }
  for (const auto& [in, out] : shapes) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = ViewOf(w, {out, in});
    const Linear linear = MakeLinear({&part, 1}, GetParam(), *context);
    AssertRowsIndependent(in, out, GetParam(), "Linear",
                          [&](DeviceContext& c, TensorView x, TensorView y, bool accumulate) {
                            linear.Apply(c, x, y, accumulate);
                          });
    if (HasFatalFailure()) return;
  }
}

TEST_P(ComputeTypes, MoreRowsThanOneCallTakes) {
  constexpr int64_t kRows = 1100;
  constexpr int64_t kIn = 32;
  constexpr int64_t kOut = 48;
  auto context = MakeContext(Device::kCpu, 2);
  std::vector<float> w = RandomNormal(kIn * kOut, 4);
  const TensorView part = ViewOf(w, {kOut, kIn});
  const Linear linear = MakeLinear({&part, 1}, GetParam(), *context);
  Activations x(kRows, kIn, GetParam(), 5);
  GuardedBuffer<float> all(kRows * kOut);
  linear.Apply(*context, x.Rows(0, kRows), all.View({kRows, kOut}));
  for (int64_t row = 0; row < kRows; row += 7) {
    std::vector<float> y(kOut);
    linear.Apply(*context, x.Rows(row, 1), ViewOf(y, {1, kOut}));
    AssertSameBits(y, all.span().subspan(static_cast<size_t>(row * kOut), kOut), "row");
  }
}

// The product for machines without a suitable oneDNN, on every instruction set of this one.
class SimdProductTest : public testing::TestWithParam<std::tuple<int64_t, DType>> {
 protected:
  test::ScopedHighwayTarget target_{std::get<0>(GetParam())};
  DType dtype_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, SimdProductTest,
                         testing::Combine(testing::ValuesIn(test::HighwayTargets()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& info) {
                           return absl::StrCat(test::HighwayTargetName(std::get<0>(info.param)),
                                               DTypeName(std::get<1>(info.param)));
                         });

TEST_P(SimdProductTest, AgreesWithReference) {
  auto ref = MakeContext(Device::kReference);
  auto cpu = MakeContext(Device::kCpu, 2);
  for (int64_t in : {1, 3, 64, 300}) {
    for (int64_t out : {1, 7, 8, 31, 33, 65, 300}) {
      const int64_t n = 13;
      std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 1);
      if (dtype_ == DType::kBF16) w = test::Widened(test::Rounded(w));
      const TensorView part = ViewOf(w, {out, in});
      const StackedWeights weights{{&part, 1}, in, out, dtype_};
      Activations x(n, in, dtype_, 3);
      std::vector<float> expected(static_cast<size_t>(n * out));
      GuardedBuffer<float> y(expected.size());
      for (bool accumulate : {false, true}) {
        ReferenceProduct(weights).Apply(*ref, x.Rows(0, n), ViewOf(expected, {n, out}), accumulate);
        SimdProduct(weights).Apply(*cpu, x.Rows(0, n), y.View({n, out}), accumulate);
        AssertProductClose(y.span(), expected, x.wide, w, in, absl::StrCat(in, " x ", out));
        std::copy(expected.begin(), expected.end(), y.data());
      }
    }
  }
}

TEST_P(SimdProductTest, RowsDoNotDependOnTheirCompany) {
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 101}, {300, 96}}) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = ViewOf(w, {out, in});
    const SimdProduct product({{&part, 1}, in, out, dtype_});
    AssertRowsIndependent(in, out, dtype_, "SimdProduct",
                          [&](DeviceContext& c, TensorView x, TensorView y, bool accumulate) {
                            product.Apply(c, x, y, accumulate);
                          });
  }
}

}  // namespace
}  // namespace ovq
