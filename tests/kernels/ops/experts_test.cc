// Mixtures of experts: choices and weights against the reference, ties, groups, and rows whose bits
// depend on nothing but themselves.
#include "kernels/ops/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/device_tests.h"

namespace ovq::kernels {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::DeviceArray;
using test::MakeContext;
using test::MakeView;
using test::RandomNormal;
using testing::ElementsAre;
using testing::FloatNear;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A row's experts in the order of choice, and their weights.
struct Choice {
  std::vector<int> experts;
  std::vector<float> weights;
};

// The choices of rows of logits [n, width], which Routes must describe without a contradiction.
std::vector<Choice> Choose(DeviceContext& context, const RouterSpec& router,
                           std::span<const float> logits, std::span<const float> bias = {},
                           int64_t width = 0) {
  if (width == 0) width = router.n_experts;
  const auto n = static_cast<int64_t>(logits.size()) / width;
  const DeviceArray<float> z(context, logits), biases(context, bias);
  ScratchScope scope(context);
  const Routes routes(scope, router, n);
  Route(context, router, bias.empty() ? nullptr : biases.data(), z.View({n, width}), routes);
  const auto read = [&](const auto* from, int64_t count) {
    std::vector<std::remove_cvref_t<decltype(*from)>> values(static_cast<size_t>(count));
    context.CopyToHost(values.data(), from, values.size() * sizeof(values[0]));
    return values;
  };
  const auto weights = read(routes.weights, routes.n_places());
  const auto places = read(routes.places, routes.n_places());
  const auto rows = read(routes.rows, routes.n_places());
  const auto begin = read(routes.begin, router.n_experts + 1);
  EXPECT_EQ(begin.front(), 0);
  EXPECT_EQ(begin.back(), routes.n_places());
  EXPECT_TRUE(std::ranges::is_sorted(begin));
  if (context.device() == Device::kCuda) {
    int32_t next = 0;
    for (const ExpertTile& tile : read(routes.tiles, routes.n_tiles)) {
      if (tile.n == 0) continue;
      EXPECT_EQ(tile.first, next);
      EXPECT_GE(tile.first, begin[tile.expert]);
      EXPECT_LE(tile.first + tile.n, begin[tile.expert + 1]);
      EXPECT_LE(tile.n, routes.tile_rows);
      next += tile.n;
    }
    EXPECT_EQ(next, routes.n_places());
  }
  std::vector<Choice> choices(static_cast<size_t>(n));
  for (size_t pair = 0; pair < weights.size(); ++pair) {
    Choice& choice = choices[pair / router.n_chosen];
    const int32_t place = places[pair];
    EXPECT_EQ(rows[place], static_cast<int32_t>(pair) / router.n_chosen);
    choice.weights.push_back(weights[pair]);
    choice.experts.push_back(
        static_cast<int>(std::ranges::upper_bound(begin, place) - begin.begin()) - 1);
  }
  return choices;
}

class Experts : public test::DeviceTest {};
INSTANTIATE_TEST_SUITE_P(, Experts, testing::ValuesIn(test::TestDevices()), test::NameOfDevice);

TEST_P(Experts, AreChosenByTheirScores) {
  const std::vector<float> z = {0, std::log(4.0f), std::log(3.0f), std::log(2.0f)};
  RouterSpec router = {.n_experts = 4, .n_chosen = 2};
  Choice choice = Choose(*context_, router, z)[0];
  EXPECT_THAT(choice.experts, ElementsAre(1, 2));
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(4 / 7.0f, 1e-6f), FloatNear(3 / 7.0f, 1e-6f)));
  router.normalizes = false, router.scale = 2;
  choice = Choose(*context_, router, z)[0];
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(0.8f, 1e-6f), FloatNear(0.6f, 1e-6f)));
  // sigmoid(ln x) = x / (x + 1). The bias decides who is chosen, the weights are without it.
  router.score = RouterScore::kSigmoid;
  choice = Choose(*context_, router, z, std::vector<float>{1, 0, 0.2f, 0})[0];
  EXPECT_THAT(choice.experts, ElementsAre(0, 2));
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(1, 1e-6f), FloatNear(1.5f, 1e-6f)));
  router.normalizes = true;
  choice = Choose(*context_, router, z, std::vector<float>{1, 0, 0.2f, 0})[0];
  EXPECT_THAT(choice.weights, ElementsAre(FloatNear(0.8f, 1e-6f), FloatNear(1.2f, 1e-6f)));
}

TEST_P(Experts, OfEqualScoresTheLowestIndexIsChosen) {
  RouterSpec router = {.n_experts = 70, .n_chosen = 4};
  std::vector<float> z(70, 0);
  EXPECT_THAT(Choose(*context_, router, z)[0].experts, ElementsAre(0, 1, 2, 3));
  z[69] = z[33] = z[40] = 1;
  EXPECT_THAT(Choose(*context_, router, z)[0].experts, ElementsAre(33, 40, 69, 0));
}

// The two best of a group decide: group 1 has the best expert, groups 0 and 2 the better pairs.
TEST_P(Experts, ComeFromTheBestGroups) {
  RouterSpec router = {.score = RouterScore::kSigmoid,
                       .n_experts = 9,
                       .n_chosen = 3,
                       .n_groups = 3,
                       .n_kept_groups = 2};
  const std::vector<float> z = {1, 1.2f, -3, 2, -5, -5, 1.1f, -4, 1.3f};
  EXPECT_THAT(Choose(*context_, router, z)[0].experts, ElementsAre(8, 1, 6));
  router.n_kept_groups = 3;
  EXPECT_THAT(Choose(*context_, router, z)[0].experts, ElementsAre(3, 8, 1));
  // Beside a dropped score of 0 kept experts with negative scores lose.
  router.n_kept_groups = 1, router.dropped = 0;
  const std::vector<float> bias = {0, 0, 0, 2, -2, 2, 0, 0, 0};
  EXPECT_THAT(Choose(*context_, router, z, bias)[0].experts, ElementsAre(3, 5, 0));
  // Groups of one.
  router = {.n_experts = 4, .n_chosen = 2, .n_groups = 4, .n_kept_groups = 2};
  EXPECT_THAT(Choose(*context_, router, std::vector<float>{1, 4, 2, 3})[0].experts,
              ElementsAre(1, 3));
}

// A row that is not finite gets weights that are not, and leaves the others alone.
TEST_P(Experts, ARowThatIsNotFiniteHarmsNoOther) {
  if (GetParam() == Device::kReference) return;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const RouterSpec router = {.score = score, .n_experts = 40, .n_chosen = 3};
    std::vector<float> z = RandomNormal(80, 3);
    const std::vector<Choice> before = Choose(*context_, router, z);
    std::fill_n(z.begin(), 40, kNaN);
    const std::vector<Choice> after = Choose(*context_, router, z);
    EXPECT_TRUE(std::isnan(after[0].weights[0]));
    EXPECT_EQ(after[1].experts, before[1].experts);
    AssertSameBits(after[1].weights, before[1].weights, "the other row");
  }
}

TEST_P(Experts, AgreeWithTheReference) {
  const auto ref = MakeContext(Device::kReference);
  for (const int n_experts : {1, 6, 64, 100, 512}) {
    for (const int64_t n : {1, 3, 40}) {
      const int k = std::min(n_experts, 7), extra = n_experts % 2;
      const int groups = n_experts % 4 == 0 ? 4 : 1;
      const RouterSpec router = {.score = extra ? RouterScore::kSoftmax : RouterScore::kSigmoid,
                                 .n_experts = n_experts,
                                 .n_chosen = k,
                                 .n_groups = groups,
                                 .n_kept_groups = (groups + 1) / 2,
                                 .scale = 2.5f};
      const std::vector<float> z = RandomNormal(static_cast<size_t>(n * (n_experts + extra)), 5),
                               bias = RandomNormal(static_cast<size_t>(n_experts), 6);
      const auto expected = Choose(*ref, router, z, bias, n_experts + extra);
      const auto choices = Choose(*context_, router, z, bias, n_experts + extra);
      for (size_t row = 0; row < choices.size(); ++row) {
        EXPECT_EQ(choices[row].experts, expected[row].experts) << n_experts << ", row " << row;
        AssertClose(choices[row].weights, expected[row].weights, 1e-5, "weights");
      }
    }
  }
}

struct Sizes {
  int n_experts, n_chosen;
  int64_t in, inner;
};

// A whole mixture without its activation: y = sum of w_e B_e (A_e x), with a gated row beside it.
class Chain {
 public:
  Chain(const Sizes& sizes, ProductTypes types, DeviceContext& context)
      : sizes_(sizes), types_(types), context_(context) {
    inner_ = Make(sizes.inner, sizes.in, 7);
    outer_ = Make(sizes.in, sizes.inner, 8);
  }

  // Runs rows [first, first + n) of an endless list.
  std::vector<float> Run(int64_t first, int64_t n) {
    const auto row = [&](int64_t i, int64_t width, uint64_t seed) {
      return RandomNormal(static_cast<size_t>(width), seed + static_cast<uint64_t>(i) * 10);
    };
    std::vector<float> x, z, h, shared;
    for (int64_t i = first; i < first + n; ++i) {
      for (const float v : row(i, sizes_.in, 1)) x.push_back(v);
      for (const float v : row(i, sizes_.n_experts + 1, 2)) z.push_back(v);
      for (const float v : row(i, sizes_.in, 3)) h.push_back(v);
      for (const float v : row(i, sizes_.in, 4)) shared.push_back(v);
    }
    const DeviceArray<float> logits(context_, z), sum(context_, h), beside(context_, shared);
    ScratchScope scope(context_);
    const RouterSpec router = {.n_experts = sizes_.n_experts, .n_chosen = sizes_.n_chosen};
    const Routes routes(scope, router, n);
    Route(context_, router, nullptr, logits.View({n, sizes_.n_experts + 1}), routes);
    const DeviceArray<float> wide(context_, x);
    const int64_t n_places = routes.n_places();
    const TensorView placed = scope.Tensor(types_.compute, {n_places, sizes_.in}),
                     inner = scope.Tensor(DType::kF32, {n_places, sizes_.inner}),
                     narrow = scope.Tensor(types_.compute, inner.shape),
                     y = scope.Tensor(DType::kF32, {n_places, sizes_.in});
    Embed(context_, wide.View({n, sizes_.in}), {routes.rows, static_cast<size_t>(n_places)},
          placed);
    inner_.Apply(context_, routes, placed, inner);
    Copy(context_, inner, narrow);
    outer_.Apply(context_, routes, narrow, y);
    SumExperts(context_, routes,
               {.y = y,
                .h = sum.View({n, sizes_.in}),
                .accumulate = true,
                .shared = beside.data(),
                .gate = logits.data() + sizes_.n_experts,
                .gate_stride = sizes_.n_experts + 1});
    return sum.Read();
  }

 private:
  ExpertLinear Make(int64_t out, int64_t in, uint64_t seed) {
    std::vector<std::vector<float>> values;
    std::vector<TensorView> parts;
    const int64_t first = (out + 1) / 2;
    for (int part = 0; part < 2 * sizes_.n_experts; ++part) {
      const int64_t rows = part % 2 == 0 ? first : out - first;
      values.push_back(RandomNormal(static_cast<size_t>(rows * in), seed + 100 * part));
      for (float& v : values.back()) v /= std::sqrt(static_cast<float>(in));
      parts.push_back(MakeView(values.back(), {rows, in}));
    }
    auto made = ExpertLinear::Make(parts, sizes_.n_experts, types_, context_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  const Sizes sizes_;
  const ProductTypes types_;
  DeviceContext& context_;
  ExpertLinear inner_, outer_;
};

enum class Types { kF32, kBF16, kInt8 };

class ExpertTypes : public testing::TestWithParam<std::tuple<Device, Types>> {
 protected:
  void SetUp() override {
    const auto [device, types] = GetParam();
    const std::string why_not = test::WhyNoDevice(device);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    context_ = MakeContext(device, 2);
    types_ = types == Types::kF32    ? ProductTypes(DType::kF32)
             : types == Types::kBF16 ? ProductTypes(DType::kBF16)
                                     : ProductTypes(DType::kBF16, WeightType::kInt8);
  }
  ProductTypes types_ = DType::kF32;
  std::unique_ptr<DeviceContext> context_;
};
std::string TypesName(const testing::TestParamInfo<std::tuple<Device, Types>>& info) {
  constexpr const char* kNames[] = {"F32", "BF16", "Int8"};
  return absl::StrCat(DeviceName(std::get<0>(info.param)),
                      kNames[static_cast<int>(std::get<1>(info.param))]);
}
INSTANTIATE_TEST_SUITE_P(, ExpertTypes,
                         testing::Combine(testing::ValuesIn(test::DevicesButReference()),
                                          testing::Values(Types::kF32, Types::kBF16, Types::kInt8)),
                         TypesName);

TEST_P(ExpertTypes, AgreeWithTheReference) {
  const auto ref = MakeContext(Device::kReference);
  const double tolerance = types_.compute == DType::kF32 ? 2e-5 : 0.06;
  for (const Sizes& sizes : {Sizes{5, 2, 40, 24}, Sizes{8, 3, 136, 70}, Sizes{3, 3, 12, 130}}) {
    Chain chain(sizes, types_, *context_), expected(sizes, types_, *ref);
    for (const int64_t n : {1, 5, 33}) {
      AssertClose(chain.Run(0, n), expected.Run(0, n), tolerance, absl::StrCat(n, " rows"));
    }
  }
}

// The rows of a call are few and many, alone and in company, for each expert and for its tiles.
TEST_P(ExpertTypes, ARowsBitsDependOnThatRowAlone) {
  const bool slow = test::IsSlow(std::get<0>(GetParam()));
  const Sizes sizes = {4, 2, 264, 72};
  Chain chain(sizes, types_, *context_);
  const int64_t n = slow ? 300 : 900;
  const std::vector<float> all = chain.Run(0, n);
  const auto one = MakeContext(std::get<0>(GetParam()), 1);
  Chain alone(sizes, types_, *one);
  for (const int64_t rows : {1, 2, 7, 20, 70}) {
    const int64_t first = n / 2 + rows;
    const auto expected = std::span(all).subspan(static_cast<size_t>(first * sizes.in),
                                                 static_cast<size_t>(rows * sizes.in));
    AssertSameBits(chain.Run(first, rows), expected, absl::StrCat(rows, " rows"));
    AssertSameBits(alone.Run(first, rows), expected, absl::StrCat(rows, " rows, one thread"));
  }
}

TEST(ExpertReference, HandComputed) {
  auto context = MakeContext(Device::kReference);
  std::vector<float> w = {1, 2, 10, 20, 100, 200};  // [3 experts][1, 2]
  std::vector<TensorView> parts;
  for (int e = 0; e < 3; ++e) parts.push_back({w.data() + 2 * e, DType::kF32, {1, 2}});
  const auto linear = ExpertLinear::Make(parts, 3, DType::kF32, *context);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const RouterSpec router = {.n_experts = 3, .n_chosen = 2, .normalizes = false};
  std::vector<float> z = {0, std::log(2.0f), -100}, x = {1, 1, 1, 1}, y(2), h = {1000};
  ScratchScope scope(*context);
  const Routes routes(scope, router, 1);
  Route(*context, router, nullptr, MakeView(z, {1, 3}), routes);
  linear->Apply(*context, routes, MakeView(x, {2, 2}), MakeView(y, {2, 1}));
  EXPECT_EQ(y, (std::vector<float>{3, 30}));
  SumExperts(*context, routes,
             {.y = MakeView(y, {2, 1}), .h = MakeView(h, {1, 1}), .accumulate = true});
  EXPECT_FLOAT_EQ(h[0], 1000 + 3 / 3.0f + 30 * 2 / 3.0f);
}

}  // namespace
}  // namespace ovq::kernels
