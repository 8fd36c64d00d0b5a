// WeightType::kInt8 on CUDA.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/matmul_device.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

using test::AssertSameBits;
using test::MakeContext;
using test::MakeView;
using test::RandomNormal;

// int8 weights, unrounded rows: sums of exact products in float32, in some order. The partial sums
// of K terms of random signs stay around |x| |q| / sqrt(K), each addition rounds one of them and
// the roundings walk too: eight deviations of |x| |q| u / sqrt(2), and one rounding of the result
// by its scale.
TEST(CudaInt8, SumsAreThoseOfItsWeights) {
  const std::string why_not = test::WhyNoDevice(Device::kCuda);
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  auto cuda = MakeContext(Device::kCuda);
  constexpr int64_t kRows = 150;
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{40, 17}, {300, 70}, {1160, 5}}) {
    std::vector<float> w = RandomNormal(static_cast<size_t>(in * out), 1);
    const TensorView part = MakeView(w, {out, in});
    const Int8Weights rounded = RoundToInt8({{&part, 1}, in, out, DType::kBF16});
    const std::vector<BF16> x = test::Rounded(RandomNormal(static_cast<size_t>(kRows * in), 2));
    const std::vector<float> ones(static_cast<size_t>(kRows * out), 1);
    const absl::StatusOr<Linear> linear =
        Linear::Make({&part, 1}, {DType::kBF16, WeightType::kInt8}, *cuda);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const auto run = [&](int64_t n, bool accumulate) {
      const test::DeviceArray<BF16> rows(*cuda,
                                         std::span(x).subspan(0, static_cast<size_t>(n * in)));
      const test::DeviceArray<float> y(*cuda,
                                       std::span(ones).subspan(0, static_cast<size_t>(n * out)));
      linear->Apply(*cuda, rows.View({n, in}), y.View({n, out}), accumulate);
      return y.Read();
    };
    const std::vector<float> all = run(kRows, false);
    for (const int64_t n : {1, 9, 16, 65}) {  // each kernel of few rows
      AssertSameBits(run(n, false), std::span(all).subspan(0, static_cast<size_t>(n * out)),
                     "rows");
    }
    const std::vector<float> added = run(2, true);
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0, xx = 0, qq = 0;
        for (int64_t k = 0; k < in; ++k) {
          const double q = rounded.values[static_cast<size_t>(o * in + k)];
          const double value = ToFloat(x[static_cast<size_t>(i * in + k)]);
          sum += value * q, xx += value * value, qq += q * q;
        }
        const double scale = rounded.scales[static_cast<size_t>(o)];
        const auto at = static_cast<size_t>(i * out + o);
        const double tolerance = test::kRoundF32 * scale * (8 * std::sqrt(xx * qq) + std::abs(sum));
        ASSERT_NEAR(all[at], sum * scale, tolerance) << "row " << i << ", output " << o;
        if (i < 2) {
          ASSERT_EQ(added[at], 1 + all[at]);
        }
      }
    }
  }
  std::vector<float> w(12, 1);
  const TensorView part = MakeView(w, {3, 4});
  EXPECT_EQ(Linear::Make({&part, 1}, {DType::kF32, WeightType::kInt8}, *cuda).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace ovq::kernels
