// Products that models of one folder share.
#include "kernels/mixers/weight_reader.h"

#include <gtest/gtest.h>

#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

TEST(WeightReader, MakesSharedProductsOnce) {
  const auto context = MakeContext(Device::kReference);
  std::vector<float> values = {1, 2, 3, 4};
  const WeightSource source = [&](const std::string&, const Shape& shape) {
    return TensorView{values.data(), DType::kF32, shape};
  };
  const auto applied = [&](const Linear& product) {
    std::vector<float> x = {1, 1}, y(static_cast<size_t>(product.out()));
    product.Apply(*context, TensorView{x.data(), DType::kF32, {1, 2}},
                  {y.data(), DType::kF32, {1, product.out()}});
    return y;
  };
  SharedProducts shared;
  const auto reader = [&](const std::string& prefix) {
    return WeightReader(source, DType::kF32, *context, prefix, absl::OkStatus(), &shared);
  };
  const std::vector<float> first = applied(reader("a.").Product({{"w", 2}}, 2));
  EXPECT_EQ(first, (std::vector<float>{3, 7}));
  values = {10, 20, 30, 40};
  EXPECT_EQ(applied(reader("a.").Product({{"w", 2}}, 2)), first) << "it is there already";
  const std::vector<float> made = {30, 70}, scaled = {60, 140}, both = {30, 70, 30, 70};
  EXPECT_EQ(applied(reader("b.").Product({{"w", 2}}, 2)), made) << "another tensor";
  EXPECT_EQ(applied(reader("a.").Product({{"w", 2}}, 2, 2)), scaled) << "another scale";
  EXPECT_EQ(applied(reader("a.").Product({{"w", 2}, {"v", 2}}, 2)), both) << "more parts";
}

TEST(WeightReader, MakesSharedExpertsOnce) {
  const auto context = MakeContext(Device::kReference);
  std::vector<float> values = {1, 2};
  std::vector<std::string> names;
  const WeightSource source = [&](const std::string& name, const Shape& shape) {
    names.push_back(name);
    return TensorView{values.data(), DType::kF32, shape};
  };
  const RouterSpec router = {.n_experts = 2, .n_chosen = 2};
  const auto applied = [&](const ExpertLinear& experts) {
    std::vector<float> z = {0, 0}, x = {1, 1, 1, 1}, y(2);
    ScratchScope scope(*context);
    const Routes routes(scope, router, 1);
    Route(*context, router, nullptr, MakeView(z, {1, 2}), routes);
    experts.Apply(*context, routes, MakeView(x, {2, 2}), MakeView(y, {2, 1}));
    return y;
  };
  SharedProducts shared;
  const WeightPart part = {"w", 1};
  const auto experts = [&](const std::string& prefix) {
    return WeightReader(source, DType::kF32, *context, prefix, absl::OkStatus(), &shared)
        .Experts("e.", router, {&part, 1}, 2);
  };
  EXPECT_EQ(applied(experts("a.")), (std::vector<float>{3, 3}));
  EXPECT_EQ(names, (std::vector<std::string>{"a.e.0.w", "a.e.1.w"}));
  values = {10, 20};
  EXPECT_EQ(applied(experts("a.")), (std::vector<float>{3, 3})) << "they are there already";
  EXPECT_EQ(applied(experts("b.")), (std::vector<float>{30, 30})) << "other tensors";
}

// 1 and 0.3 as int8: 127 and 38 times 1/127, of 0.2992.
TEST(WeightReader, ProductsOfFewOutputsStayInTheComputeType) {
  const auto context = MakeContext(Device::kReference);
  std::vector<float> values;
  for (int i = 0; i < 64; ++i) values.insert(values.end(), {1, 0.3f});
  const WeightSource source = [&](const std::string&, const Shape& shape) {
    return TensorView{values.data(), DType::kF32, shape};
  };
  WeightReader reader(source, {DType::kF32, WeightType::kInt8}, *context);
  const auto second = [&](const Linear& product) {
    std::vector<float> x = {0, 1}, y(static_cast<size_t>(product.out()));
    product.Apply(*context, TensorView{x.data(), DType::kF32, {1, 2}},
                  {y.data(), DType::kF32, {1, product.out()}});
    return y[0];
  };
  EXPECT_EQ(second(reader.Product({{"w", 63}}, 2)), 0.3f);
  EXPECT_NEAR(second(reader.Product({{"w", 64}}, 2)), 38 / 127.0, 1e-6);
  EXPECT_EQ(second(reader.FloatProduct({"w", 64}, 2)), 0.3f);
}

}  // namespace
}  // namespace ovq::kernels::test
