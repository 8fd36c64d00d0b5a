// The product choices recorded for a model's shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/common/product_choices.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

class ProductChoicesTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = test::WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = test::MakeContext(Device::kCuda);
  }
  ~ProductChoicesTest() override { unsetenv("OVQ_CUDA_PRODUCTS"); }

  void Make(int64_t in, int64_t out, ProductTypes types) {
    const std::vector<float> weights = test::RandomNormal(static_cast<size_t>(in * out), 1);
    const TensorView view = {const_cast<float*>(weights.data()), DType::kF32, {out, in}};
    ASSERT_TRUE(Linear::Make({&view, 1}, types, *context_).ok());
  }
  // The choices of that shape: each with its weights and count.
  static std::vector<std::string> Noted(int64_t in, int64_t out) {
    std::vector<std::string> noted;
    for (const ProductChoice& choice : ProductChoices()) {
      if (choice.in == in && choice.out == out) noted.push_back(choice.ToString());
    }
    return noted;
  }

  std::unique_ptr<DeviceContext> context_;
};

TEST_F(ProductChoicesTest, SayWhichProductAShapeRunsWithOnCuda) {
  Make(32, 72, DType::kF32);
  Make(32, 72, DType::kF32);
  Make(32, 72, DType::kBF16);
  Make(32, 72, {DType::kBF16, WeightType::kInt8});
  const std::vector<std::string> noted = Noted(32, 72);
  ASSERT_EQ(noted.size(), 3u);
  EXPECT_THAT(noted[0], testing::StartsWith("2 products of 32 inputs and 72 outputs, weights in "
                                            "f32: "));
  const std::string either =
      "(cuBLASLt: to 4 rows (our own|algorithm [0-9]+, tile [0-9]+, stages [0-9]+).*; to [0-9]+ "
      "rows "
      "algorithm [0-9]+, tile [0-9]+, stages [0-9]+|own: .+)";
  EXPECT_THAT(noted[0], testing::ContainsRegex(either));
  EXPECT_THAT(noted[1], testing::ContainsRegex("^1 product .* in bf16: " + either));
  EXPECT_THAT(noted[2], testing::EndsWith("weights in int8: own: weights in int8"));
}

TEST_F(ProductChoicesTest, AreOursWhereTheEnvironmentSaysSoOnCuda) {
  setenv("OVQ_CUDA_PRODUCTS", "own", 1);
  Make(32, 88, DType::kBF16);
  EXPECT_THAT(Noted(32, 88), testing::ElementsAre(testing::EndsWith("own: OVQ_CUDA_PRODUCTS")));
}

}  // namespace
}  // namespace ovq::kernels
