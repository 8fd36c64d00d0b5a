#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/product_chain.h"
#include "tests/device_tests.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::DeviceArray;
using test::MakeContext;
using test::MakeView;
using test::RandomNormal;

// Activations of a compute type on the host; the float copy holds the same (rounded) values.
struct Activations {
  Activations(int64_t n, int64_t in, DType type, uint64_t seed) : in(in), dtype(type) {
    wide = RandomNormal(static_cast<size_t>(n * in), seed);
    narrow = test::Rounded(wide);
    if (dtype == DType::kBF16) wide = test::Widened(narrow);
  }
  int64_t in;
  DType dtype;
  std::vector<float> wide;
  std::vector<BF16> narrow;
};

struct RowRange {
  int64_t first;
  int64_t n;
};

// y of some rows, with `before` in y if it is to be added to. ApplyFn is MakeApply a Linear or
// Product::apply.
template <class ApplyFn>
std::vector<float> RunRows(DeviceContext& context, const Activations& x, const RowRange& range,
                           int64_t out, std::span<const float> before, ApplyFn&& apply) {
  const auto [first, n] = range;
  const auto from = static_cast<size_t>(first * x.in), elements = static_cast<size_t>(n * x.in);
  const bool accumulate = !before.empty();
  const DeviceArray<float> y = accumulate
                                   ? DeviceArray<float>(context, before)
                                   : DeviceArray<float>(context, static_cast<size_t>(n * out));
  if (x.dtype == DType::kF32) {
    const DeviceArray<float> rows(context, std::span(x.wide).subspan(from, elements));
    apply(context, rows.View({n, x.in}), y.View({n, out}), accumulate);
    return y.Read();
  }
  const DeviceArray<BF16> rows(context, std::span(x.narrow).subspan(from, elements));
  apply(context, rows.View({n, x.in}), y.View({n, out}), accumulate);
  return y.Read();
}
auto MakeApply(const Linear& linear) {
  return [&](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
    linear.Apply(context, x, y, accumulate);
  };
}

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

class ComputeTypes : public testing::TestWithParam<std::tuple<Device, DType>> {
 protected:
  void SetUp() override {
    const std::string why_not = test::WhyNoDevice(device_);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    context_ = MakeContext(device_, 2);
  }
  Device device_ = std::get<0>(GetParam());
  DType dtype_ = std::get<1>(GetParam());
  std::unique_ptr<DeviceContext> context_;
};
INSTANTIATE_TEST_SUITE_P(, ComputeTypes,
                         testing::Combine(testing::ValuesIn(test::DevicesButReference()),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& info) {
                           return absl::StrCat(DeviceName(std::get<0>(info.param)),
                                               DTypeName(std::get<1>(info.param)));
                         });

TEST(LinearReference, HandComputed) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> w1{1, 2, 3, 4};  // [2, 2]
  std::vector<float> w2{-1, 0.5};     // [1, 2]
  const TensorView parts[] = {MakeView(w1, {2, 2}), MakeView(w2, {1, 2})};
  const Linear linear = MakeLinear(parts, DType::kF32, *context);
  EXPECT_EQ(linear.in(), 2);
  EXPECT_EQ(linear.out(), 3);
  std::vector<float> x{1, 10, 2, -4};
  std::vector<float> y(6, 100);
  linear.Apply(*context, MakeView(x, {2, 2}), MakeView(y, {2, 3}));
  EXPECT_EQ(y, (std::vector<float>{21, 43, 4, -6, -10, -4}));
  linear.Apply(*context, MakeView(x, {2, 2}), MakeView(y, {2, 3}), true);
  EXPECT_EQ(y, (std::vector<float>{42, 86, 8, -12, -20, -8}));
}

// 1 + 2^-8 lies halfway between two bfloat16 values; the even one is 1.
TEST(LinearReference, WeightsAreRoundedToTheComputeType) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> w{1 + 0x1p-8f, 1 + 3 * 0x1p-8f};
  const TensorView part = MakeView(w, {2, 1});
  const Linear linear = MakeLinear({&part, 1}, DType::kBF16, *context);
  std::vector<BF16> x{RoundToBF16(1)};
  std::vector<float> y(2);
  linear.Apply(*context, MakeView(x, {1, 1}), MakeView(y, {1, 2}));
  EXPECT_EQ(y, (std::vector<float>{1, 1 + 0x1p-6f}));
}

TEST(Linear, RefusesWeightsThatDoNotFit) {
  auto context = MakeContext(Device::kCpu);
  std::vector<float> w(12);
  const TensorView good = MakeView(w, {3, 4});
  const TensorView other = MakeView(w, {4, 3});
  const TensorView flat = MakeView(w, {12});
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
TEST_P(ComputeTypes, AgreesWithReference) {
  auto ref = MakeContext(Device::kReference);
  std::vector<int64_t> ins{1, 2, 3, 32, 33, 100, 256, 2304}, outs{1, 5, 31, 96, 101, 258};
  if (device_ == Device::kCuda) ins = {1, 33, 48, 300}, outs = {1, 20, 101};
  for (int64_t in : ins) {
    for (int64_t out : outs) {
      const int64_t n = 13;
      const std::string what = absl::StrCat("in ", in, " out ", out);
      const auto elements = static_cast<size_t>(in * out);
      std::vector<float> w = RandomNormal(elements, 1);
      std::vector<BF16> w_bf16 = test::Rounded(RandomNormal(elements, 2));
      std::vector<uint16_t> w_f16(elements);
      for (size_t i = 0; i < elements; ++i)
        w_f16[i] = static_cast<uint16_t>(0x3000 + i * 37 % 4096);
      const TensorView parts[] = {MakeView(w, {out, in}), MakeView(w_bf16, {out, in}),
                                  MakeView(w_f16, {out, in})};
      const Linear expected_linear = MakeLinear(parts, dtype_, *ref);
      const Linear linear = MakeLinear(parts, dtype_, *context_);
      ASSERT_EQ(linear.out(), 3 * out);
      ASSERT_GE(linear.bytes(), 3 * elements * DTypeBytes(dtype_));

      std::vector<float> all = w;
      for (BF16 v : w_bf16) all.push_back(ToFloat(v));
      for (uint16_t v : w_f16) all.push_back(HalfToFloat(v));
      const Activations x(n, in, dtype_, 3);
      std::vector<float> before;
      for (int round = 0; round < 2; ++round) {
        const std::vector<float> expected =
            RunRows(*ref, x, {0, n}, 3 * out, before, MakeApply(expected_linear));
        const std::vector<float> y =
            RunRows(*context_, x, {0, n}, 3 * out, before, MakeApply(linear));
        AssertProductClose(y, expected, x.wide, all, in, what);
        before = expected;
      }
    }
  }
}

// A row's bits for n rows from the middle of a long call, 1 and 2 threads and one of two alone,
// against the same rows of that long call.
struct ProductShape {
  int64_t in;
  int64_t out;
  DType dtype;
};
template <class ApplyFn>
void AssertRowsIndependent(Device device, const ProductShape& shape,
                           const std::vector<int64_t>& counts, const std::string& what,
                           ApplyFn&& apply) {
  const auto [in, out, dtype] = shape;
  const int64_t n_rows = counts.back();
  auto one = MakeContext(device, 1);
  auto two = MakeContext(device, 2);
  const Activations x(n_rows, in, dtype, 5);
  const std::vector<float> values = RandomNormal(static_cast<size_t>(n_rows * out), 6);
  for (bool accumulate : {false, true}) {
    const auto before = [&](int64_t first, int64_t n) {
      const std::span<const float> all(values);
      return accumulate
                 ? all.subspan(static_cast<size_t>(first * out), static_cast<size_t>(n * out))
                 : all.subspan(0, 0);
    };
    const std::vector<float> expected =
        RunRows(*one, x, {0, n_rows}, out, before(0, n_rows), apply);
    for (const auto& [context, alone] :
         {std::pair{one.get(), false}, {two.get(), false}, {two.get(), true}}) {
      if (device == Device::kCuda && context == two.get()) continue;  // knows no threads
      const SingleThreadScope scope(*context, alone);
      for (int64_t n : counts) {
        const int64_t first = (n_rows - n) / 3;
        AssertSameBits(RunRows(*context, x, {first, n}, out, before(first, n), apply),
                       std::span(expected).subspan(static_cast<size_t>(first * out),
                                                   static_cast<size_t>(n * out)),
                       absl::StrCat(what, " in ", in, " out ", out, " rows ", n, " threads ",
                                    context->n_threads(), " accumulate ", accumulate));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}
const std::vector<int64_t> kCpuCounts = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 128, 200, 512};
// Each kernel of CUDA's own product, at and around the counts where another takes over.
const std::vector<int64_t> kCudaCounts = {1, 7, 8, 9, 16, 17, 64, 65, 150};

TEST_P(ComputeTypes, RowsDoNotDependOnTheirCompany) {
  const bool cuda = device_ == Device::kCuda;
  std::vector<std::pair<int64_t, int64_t>> shapes;
  if (cuda) {
    shapes = {{48, 20}, {300, 101}, {1160, 16}};
  } else if (test::IsSlow(device_)) {
    shapes = {{32, 96}, {300, 101}, {768, 258}};
  } else {
    shapes = {{768, 10000}};
    for (int64_t in : {32, 64, 256, 768, 2304}) {
      for (int64_t out : {32, 96, 101, 258, 768}) shapes.emplace_back(in, out);
    }
  }
  for (const auto& [in, out] : shapes) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = MakeView(w, {out, in});
    const Linear linear = MakeLinear({&part, 1}, dtype_, *context_);
    AssertRowsIndependent(device_, {in, out, dtype_}, cuda ? kCudaCounts : kCpuCounts, "Linear",
                          MakeApply(linear));
    if (HasFatalFailure()) return;
  }
}

TEST_P(ComputeTypes, MoreRowsThanOneCallTakes) {
  const int64_t n_rows = device_ == Device::kCuda ? 260 : 1100;
  constexpr int64_t kIn = 32;
  constexpr int64_t kOut = 48;
  std::vector<float> w = RandomNormal(kIn * kOut, 4);
  const TensorView part = MakeView(w, {kOut, kIn});
  const Linear linear = MakeLinear({&part, 1}, dtype_, *context_);
  const Activations x(n_rows, kIn, dtype_, 5);
  const std::vector<float> all = RunRows(*context_, x, {0, n_rows}, kOut, {}, MakeApply(linear));
  for (int64_t row = 0; row < n_rows; row += 7) {
    AssertSameBits(RunRows(*context_, x, {row, 1}, kOut, {}, MakeApply(linear)),
                   std::span(all).subspan(static_cast<size_t>(row * kOut), kOut), "row");
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

// A product's sums against the reference's, in both modes.
template <class MakeFn>
void AssertProductAgrees(DeviceContext& context, int64_t n, int64_t in, int64_t out, DType dtype,
                         MakeFn&& make) {
  auto ref = MakeContext(Device::kReference);
  std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 1);
  if (dtype == DType::kBF16) w = test::Widened(test::Rounded(w));
  const TensorView part = MakeView(w, {out, in});
  const StackedWeights weights{{&part, 1}, in, out, dtype};
  const Product exact = reference_of<cpu::MakeProduct>(*ref, weights);
  const Product product = make(weights);
  const Activations x(n, in, dtype, 3);
  std::vector<float> before;
  for (int round = 0; round < 2; ++round) {
    const std::vector<float> expected = RunRows(*ref, x, {0, n}, out, before, exact.apply);
    AssertProductClose(RunRows(context, x, {0, n}, out, before, product.apply), expected, x.wide, w,
                       in, absl::StrCat(n, " rows, ", in, " x ", out));
    before = expected;
  }
}

TEST_P(SimdProductTest, AgreesWithReference) {
  auto cpu = MakeContext(Device::kCpu, 2);
  for (int64_t in : {1, 3, 64, 300}) {
    for (int64_t out : {1, 7, 8, 31, 33, 65, 300}) {
      AssertProductAgrees(*cpu, 13, in, out, dtype_, cpu::MakeSimdProduct);
    }
  }
}

TEST_P(SimdProductTest, RowsDoNotDependOnTheirCompany) {
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 101}, {300, 96}}) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = MakeView(w, {out, in});
    const Product product = cpu::MakeSimdProduct({{&part, 1}, in, out, dtype_});
    AssertRowsIndependent(Device::kCpu, {in, out, dtype_}, kCpuCounts, "SIMD product",
                          product.apply);
  }
}

#ifdef WITH_CUDA

// This project's CUDA kernels, which Linear uses where cuBLASLt's products fail the test.
class CudaProductTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string why_not = test::WhyNoDevice(Device::kCuda);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    context_ = MakeContext(Device::kCuda);
  }
  std::unique_ptr<DeviceContext> context_;
};
INSTANTIATE_TEST_SUITE_P(, CudaProductTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// Rows for each kernel; inputs of one segment, of several and of more than a block has warps.
TEST_P(CudaProductTest, AgreesWithReference) {
  const std::vector<std::array<int64_t, 3>> cases = {{1, 3, 1},    {8, 128, 20},  {13, 300, 101},
                                                     {64, 40, 65}, {70, 264, 70}, {3, 1160, 17}};
  for (const auto& [n, in, out] : cases) {
    AssertProductAgrees(*context_, n, in, out, GetParam(), [&](const StackedWeights& weights) {
      return cuda::MakeOwnProduct(*context_, weights);
    });
  }
}

// Few rows, whose segments several warps sum at once, against many, which one block sums.
TEST_P(CudaProductTest, RowsDoNotDependOnTheirCompany) {
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1160, 65}, {265, 33}}) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = MakeView(w, {out, in});
    const Product product = cuda::MakeOwnProduct(*context_, {{&part, 1}, in, out, GetParam()});
    AssertRowsIndependent(Device::kCuda, {in, out, GetParam()}, kCudaCounts, "own product",
                          product.apply);
  }
}

// Our own products of few rows, which Linear uses where they have the bits of cuBLASLt's.
class ChainProductTest : public CudaProductTest {
 protected:
  Product Make(const StackedWeights& weights) {
    const auto memory = std::make_shared<Buffer>(
        cuda::UploadItems(*context_, weights.out, weights.row_bytes(),
                          [&](int64_t row, std::byte* bytes) { CopyRow(weights, row, bytes); }));
    const TensorView w = {memory->as<void>(), DType::kBF16, {weights.out, weights.in}};
    EXPECT_TRUE(cuda::FitsChain(*context_, weights.in, weights.out));
    const auto fused = [memory, w](DeviceContext& context, const ProductRows& x, TensorView y,
                                   ProductEnd end) {
      return cuda::ApplyChain(context, w, x, y, end);
    };
    const auto apply = [=](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
      EXPECT_TRUE(fused(context, x, y, accumulate ? ProductEnd::kAdd : ProductEnd::kStore));
    };
    return {memory->bytes(), apply, fused};
  }
};
INSTANTIATE_TEST_SUITE_P(, ChainProductTest, testing::Values(DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// Blocks of one, two and four tiles, the last ones not full; inputs of less than a link and of many
// that fill no whole one.
TEST_P(ChainProductTest, AgreesWithReference) {
  const std::vector<std::array<int64_t, 3>> cases = {
      {1, 16, 8},      {8, 48, 20},     {16, 1160, 16},  {9, 8, 100},
      {16, 1280, 250}, {1, 1280, 1280}, {13, 3200, 300}, {2, 1280, 640}};
  for (const auto& [n, in, out] : cases) {
    AssertProductAgrees(*context_, n, in, out, GetParam(),
                        [&](const StackedWeights& weights) { return Make(weights); });
  }
}

TEST_P(ChainProductTest, RowsDoNotDependOnTheirCompany) {
  std::vector<int64_t> counts(cuda::kMaxChainRows);
  std::iota(counts.begin(), counts.end(), 1);
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1160, 16}, {48, 250}}) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = MakeView(w, {out, in});
    const Product product = Make({{&part, 1}, in, out, GetParam()});
    AssertRowsIndependent(Device::kCuda, {in, out, GetParam()}, counts, "chain", product.apply);
  }
}

// Norm, product and SwiGLU by kernels of their own, and by one.
TEST_P(ChainProductTest, FusedHasTheBitsOfItsParts) {
  const std::vector<std::array<int64_t, 3>> cases = {
      {1, 48, 40}, {3, 1160, 80}, {8, 256, 20}, {9, 1160, 16}, {16, 1280, 320}};
  for (const auto& [n, in, out] : cases) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 4);
    const TensorView part = MakeView(w, {out, in});
    const Product product = Make({{&part, 1}, in, out, GetParam()});
    const DeviceArray<float> h(*context_, RandomNormal(static_cast<size_t>((n + 2) * in), 5));
    const DeviceArray<float> weight(*context_, RandomNormal(static_cast<size_t>(in), 6));
    std::vector<int32_t> places(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) places[i] = static_cast<int32_t>((i + 2) % (n + 2));
    const DeviceArray<int32_t> rows(*context_, places);
    const DeviceArray<BF16> x(*context_, static_cast<size_t>(n * in)),
        x_fused(*context_, static_cast<size_t>(n * in));
    ProductRows normed = x_fused.View({n, in});
    normed.norm = {.weight = weight.View({in}), .eps = 1e-5f};
    normed.h = h.View({n + 2, in}), normed.h_rows = rows.span();
    RmsNorm(*context_, normed.h, *normed.norm, x.View({n, in}), normed.h_rows);
    const std::vector<float> before = RandomNormal(static_cast<size_t>(n * out), 7);
    for (ProductEnd end : {ProductEnd::kStore, ProductEnd::kAdd}) {
      const DeviceArray<float> y(*context_, before), y_fused(*context_, before);
      product.apply(*context_, x.View({n, in}), y.View({n, out}), end == ProductEnd::kAdd);
      EXPECT_TRUE(product.fused(*context_, normed, y_fused.View({n, out}), end));
      AssertSameBits(test::Widened(x_fused.Read()), test::Widened(x.Read()), "x");
      AssertSameBits(y_fused.Read(), y.Read(), "y");
    }
    const DeviceArray<float> gate_up(*context_, static_cast<size_t>(n * out));
    const DeviceArray<BF16> y(*context_, static_cast<size_t>(n * out / 2)),
        y_fused(*context_, static_cast<size_t>(n * out / 2));
    product.apply(*context_, x.View({n, in}), gate_up.View({n, out}), false);
    SwiGlu(*context_, gate_up.View({n, out}), y.View({n, out / 2}));
    EXPECT_TRUE(product.fused(*context_, normed, y_fused.View({n, out / 2}), ProductEnd::kSwiGlu));
    AssertSameBits(test::Widened(y_fused.Read()), test::Widened(y.Read()), "SwiGLU");
  }
}

TEST_P(ChainProductTest, FitsWhereSharedMemoryHoldsATile) {
  EXPECT_TRUE(cuda::FitsChain(*context_, 3200, 1280));
  EXPECT_FALSE(cuda::FitsChain(*context_, 3204, 1280));  // rows are no multiples of 16 bytes
  EXPECT_FALSE(cuda::FitsChain(*context_, 8192, 1280));
}

#endif

}  // namespace
}  // namespace ovq::kernels
