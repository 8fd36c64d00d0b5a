// The choice among cuBLASLt's algorithms, with the host executor's stand-in for the library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/common/device_memory.h"
#include "kernels/ops/matmul_device.h"
#include "kernels/ops/product_chain.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels::cuda {
namespace {

using simt::CublasAlgorithm;
using testing::HasSubstr;
using testing::Not;

class CublasChoiceTest : public testing::Test {
 protected:
  ~CublasChoiceTest() override { simt::SetCublas({}); }

  // The choices are kept for each shape: every test has its own number of inputs.
  std::optional<Product> Make(int64_t in, std::vector<CublasAlgorithm> algorithms,
                              DType compute = DType::kF32) {
    simt::SetCublas(std::move(algorithms));
    context_ = test::MakeContext(Device::kCuda);
    in_ = in;
    weights_ = test::RandomNormal(static_cast<size_t>(in * kOut), 4);
    const TensorView part = test::MakeView(weights_, {kOut, in});
    return MakeCublasProduct(*context_, {{&part, 1}, in, kOut, compute}, what_);
  }
  // y of n equal rows.
  std::vector<float> Apply(const Product& product, int64_t n) {
    std::vector<float> x;
    const std::vector<float> row = test::RandomNormal(static_cast<size_t>(in_), 5);
    for (int64_t i = 0; i < n; ++i) x.insert(x.end(), row.begin(), row.end());
    const test::DeviceArray<float> rows(*context_, x), y(*context_, static_cast<size_t>(n * kOut));
    product.apply(*context_, rows.View({n, in_}), y.View({n, kOut}), false);
    return y.Read();
  }

  static constexpr int64_t kOut = 4;
  std::unique_ptr<DeviceContext> context_;
  std::vector<float> weights_;
  int64_t in_ = 0;
  std::string what_;
};

TEST_F(CublasChoiceTest, IsTheFastestOfEqualBits) {
  // The fastest of all gives other bits than the two others.
  const std::optional<Product> product = Make(4, {{.id = 1, .delay = 80, .few_rows_delay = 200000},
                                                  {.id = 2, .delay = 20, .few_rows_delay = 2000},
                                                  {.id = 3, .descending = true}});
  ASSERT_TRUE(product.has_value());
  EXPECT_THAT(what_, HasSubstr("to 4 rows algorithm 2, "));
  EXPECT_THAT(what_, HasSubstr("to 8192 rows algorithm 2, "));
  EXPECT_THAT(what_, Not(HasSubstr("algorithm 3")));
}

TEST_F(CublasChoiceTest, RefusalsAtOneNumberOfRowsLeaveTheOthers) {
  const std::optional<Product> product = Make(8, {{.id = 1, .refuses = 9},
                                                  {.id = 2, .refuses = 65},
                                                  {.id = 3, .delay = 20, .few_rows_delay = 2000}});
  ASSERT_TRUE(product.has_value());
  EXPECT_THAT(what_, HasSubstr("to 16 rows algorithm 2, "));
  EXPECT_THAT(what_, HasSubstr("to 256 rows algorithm 1, "));
  const std::vector<float> one = Apply(*product, 1);
  for (const int64_t n : {9, 65, 200, 9000}) {
    const std::vector<float> all = Apply(*product, n);
    for (int64_t row = 0; row < n; row += 13) {
      test::AssertSameBits(std::span(all).subspan(static_cast<size_t>(row * kOut), kOut), one,
                           "row");
    }
  }
}

TEST_F(CublasChoiceTest, IsNoneWhereEveryAlgorithmRefusesSomeRows) {
  EXPECT_FALSE(Make(12, {{.id = 1, .refuses = 5}, {.id = 2, .refuses = 5}}).has_value());
  EXPECT_THAT(what_, HasSubstr("no algorithms of cuBLASLt"));
}

TEST_F(CublasChoiceTest, RowsThatAreRefusedWhileRunningAreComputedInParts) {
  const std::optional<Product> product = Make(16, {{.id = 1}});
  ASSERT_TRUE(product.has_value());
  const std::vector<float> expected = Apply(*product, 7);
  simt::SetCublas({{.id = 1, .refuses = 7}});
  test::AssertSameBits(Apply(*product, 7), expected, "in parts");
}

TEST_F(CublasChoiceTest, ARowThatIsRefusedIsAnErrorOfTheBatch) {
  const std::optional<Product> product = Make(20, {{.id = 1}});
  ASSERT_TRUE(product.has_value());
  simt::SetCublas({{.id = 1, .refuses = 1}});
  const absl::Status status = CatchDeviceErrors([&] { Apply(*product, 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("refused a product of one row, 20 inputs"));
  Apply(*product, 8);
}

TEST_F(CublasChoiceTest, OurOwnIsTakenForFewRowsWhereItHasTheBits) {
  ASSERT_TRUE(
      Make(32, {{.id = 1, .links = true, .few_rows_delay = 1000}}, DType::kBF16).has_value());
  EXPECT_THAT(what_, HasSubstr("to 16 rows our own of few rows; "));
  EXPECT_THAT(what_, HasSubstr("; to 64 rows algorithm 1, "));
  ASSERT_TRUE(Make(40, {{.id = 1, .few_rows_delay = 1000}, {.id = 2}}, DType::kBF16).has_value());
  EXPECT_THAT(what_, HasSubstr("to 16 rows algorithm"));
}

TEST_F(CublasChoiceTest, AFusedProductOfFewRowsHasTheBitsOfManyRows) {
  constexpr int64_t kMany = kMaxChainRows + 1, kFew = 5;
  const std::optional<Product> product =
      Make(48, {{.id = 1, .links = true, .few_rows_delay = 1000}}, DType::kBF16);
  ASSERT_TRUE(product.has_value());
  const test::DeviceArray<float> h(*context_, test::RandomNormal(kMany * 48, 6)),
      weight(*context_, test::RandomNormal(48, 7)), gate_up(*context_, kMany * kOut);
  const test::DeviceArray<BF16> x(*context_, kMany * 48), y(*context_, kMany * kOut / 2),
      few_y(*context_, kFew * kOut / 2);
  ProductRows rows = x.View({kMany, 48});
  rows.norm = {.weight = weight.View({48}), .eps = 1e-5f};
  rows.h = h.View({kMany, 48});
  EXPECT_FALSE(product->fused(*context_, rows, y.View({kMany, kOut / 2}), ProductEnd::kSwiGlu));
  RmsNorm(*context_, rows.h, *rows.norm, rows.x);
  product->apply(*context_, rows.x, gate_up.View({kMany, kOut}), false);
  SwiGlu(*context_, gate_up.View({kMany, kOut}), y.View({kMany, kOut / 2}));
  rows.x.shape = rows.h.shape = {kFew, 48};
  EXPECT_TRUE(product->fused(*context_, rows, few_y.View({kFew, kOut / 2}), ProductEnd::kSwiGlu));
  std::vector<float> expected = test::Widened(y.Read());
  expected.resize(kFew * kOut / 2);
  test::AssertSameBits(test::Widened(few_y.Read()), expected, "few rows");
}

}  // namespace
}  // namespace ovq::kernels::cuda
