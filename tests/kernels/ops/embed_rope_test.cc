#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "tests/device_tests.h"

namespace ovq::kernels {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::DeviceArray;
using test::kRoundF32;
using test::MakeContext;
using test::RandomNormal;

// Heads [n_heads, head_dim] of rows that are `stride` apart.
struct HeadSizes {
  int n_heads;
  int head_dim;
  int64_t stride;
};

std::vector<float> RunRope(DeviceContext& context, std::span<const float> x, const HeadSizes& sizes,
                           std::span<const int64_t> positions, double theta) {
  const DeviceArray<float> data(context, x);
  const DeviceArray<int64_t> rows(context, positions);
  const RopeTable table(context, {.theta = theta, .dims = sizes.head_dim});
  const auto n = static_cast<int64_t>(positions.size());
  PrepareHeads(context, {.queries = {data.data(), n, sizes.n_heads, sizes.head_dim, sizes.stride},
                         .norm = HeadNorm::kNone,
                         .rope = &table,
                         .positions = rows.span()});
  return data.Read();
}

using RopeDevices = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(, RopeDevices, testing::ValuesIn(test::TestDevices()), test::NameOfDevice);

// A single pair turns by one radian a position whatever theta is.
TEST_P(RopeDevices, OnePairTurnsByThePosition) {
  const std::vector<float> x = RunRope(*context_, std::vector<float>{1, 0, 0, 2}, {1, 2, 2},
                                       std::vector<int64_t>{1, 3}, 100);
  const std::vector<double> expected{std::cos(1.0), std::sin(1.0), -2 * std::sin(3.0),
                                     2 * std::cos(3.0)};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(x[i], expected[i], 4 * kRoundF32) << i;
}

// Far positions, in long double: the angle is right to position * 2^-64 (relative to a frequency of
// at most 1), so 2^-24 at position 2^40. Cosine, sine, two products and a sum round once each.
TEST_P(RopeDevices, ExtremePositions) {
  constexpr int64_t kFar = int64_t{1} << 40;
  const std::vector<int64_t> positions{
      0, 1, 127, 32768, (1 << 24) + 1, int64_t{1} << 31, kFar, kFar + 12345};
  for (int head_dim : {2, 6, 16, 64, 128, 258}) {
    const int n_heads = 3;
    const int64_t stride = n_heads * head_dim + 5;
    const auto n = static_cast<int64_t>(positions.size());
    const std::vector<float> before = RandomNormal(static_cast<size_t>(n * stride), 7);
    std::vector<float> expected = before;
    std::vector<double> tolerance(before.size(), 0);
    for (int64_t row = 0; row < n; ++row) {
      for (int j = 0; j < n_heads * head_dim / 2; ++j) {
        const int i = j % (head_dim / 2);
        const auto a = static_cast<size_t>(row * stride + j / (head_dim / 2) * head_dim + i);
        const size_t b = a + static_cast<size_t>(head_dim / 2);
        const long double angle =
            positions[static_cast<size_t>(row)] * std::pow(10000.0L, -2.0L * i / head_dim);
        const long double c = std::cos(angle);
        const long double s = std::sin(angle);
        expected[a] = static_cast<float>(before[a] * c - before[b] * s);
        expected[b] = static_cast<float>(before[b] * c + before[a] * s);
        const double angle_error =
            2 * static_cast<double>(positions[static_cast<size_t>(row)]) * 0x1p-64;
        tolerance[a] = (std::abs(before[a]) + std::abs(before[b])) * (4 * kRoundF32 + angle_error);
        tolerance[b] = tolerance[a];
      }
    }
    AssertClose(
        RunRope(*context_, before, {n_heads, head_dim, stride}, positions, 10000), expected,
        [&](size_t i) { return tolerance[i]; }, absl::StrCat("head_dim ", head_dim));
  }
}

// The reference computes in long double, whose angles fail past 2^53.
using FastDevices = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(, FastDevices, testing::ValuesIn(test::DevicesButReference()),
                         test::NameOfDevice);

// The score of a query and a key depends on their distance alone, at any position an int64 holds.
TEST_P(FastDevices, RopeOfADistanceIsExactAtAnyPosition) {
  constexpr int kDim = 128;
  const std::vector<float> qk = RandomNormal(2 * kDim, 8);
  const auto score = [&](int64_t position) {
    const std::vector<float> x = RunRope(*context_, qk, {1, kDim, kDim},
                                         std::vector<int64_t>{position + 37, position}, 10000);
    double sum = 0;
    for (size_t i = 0; i < kDim; ++i) sum += double{x[i]} * x[i + kDim];
    return sum;
  };
  const double expected = score(0);
  // 256 elements off by up to 4 roundings each, in independent directions.
  const double tolerance = 8 * kRoundF32 * kDim;
  for (int shift : {24, 31, 40, 53, 55, 62}) {
    EXPECT_NEAR(score((int64_t{1} << shift) + 1), expected, tolerance) << "2^" << shift;
  }
}

TEST_P(FastDevices, RopeOfARowDoesNotDependOnItsCompany) {
  const size_t n_rows = GetParam() == Device::kCuda ? 31 : 301;
  constexpr HeadSizes kSizes = {4, 64, 4 * 64};
  const std::vector<float> x = RandomNormal(n_rows * kSizes.stride, 9);
  std::vector<int64_t> positions(n_rows);
  for (size_t i = 0; i < n_rows; ++i) positions[i] = static_cast<int64_t>(i * i * 977);
  auto two = MakeContext(GetParam(), 2);
  const std::vector<float> all = RunRope(*two, x, kSizes, positions, 500000);
  for (size_t row = n_rows; row-- > 0;) {
    AssertSameBits(RunRope(*context_, std::span(x).subspan(row * kSizes.stride, kSizes.stride),
                           kSizes, std::span(positions).subspan(row, 1), 500000),
                   std::span(all).subspan(row * kSizes.stride, kSizes.stride),
                   absl::StrCat("row ", row));
  }
}

// Rows of [queries | keys | values].
struct PreparedHeads {
  int n_queries, n_keys, head_dim;
  bool rope, round;
  int64_t stride() const { return int64_t{n_queries + n_keys} * head_dim + 9; }
};

// With `fused` one call, else one after another, with the rounding here.
std::vector<float> RunPrepare(DeviceContext& context, const PreparedHeads& heads,
                              std::span<const float> x, std::span<const int64_t> positions,
                              bool fused) {
  const auto n = static_cast<int64_t>(positions.size());
  const std::vector<float> beta_values = RandomNormal(static_cast<size_t>(heads.n_queries), 31);
  const DeviceArray<float> data(context, x), beta(context, std::span(beta_values));
  const DeviceArray<int64_t> rows(context, positions);
  const int64_t keys_at = int64_t{heads.n_queries} * heads.head_dim;
  HeadPrep prep = {.queries = {data.data(), n, heads.n_queries, heads.head_dim, heads.stride()},
                   .keys = {data.data() + keys_at, n, heads.n_keys, heads.head_dim, heads.stride()},
                   .beta = beta.data(),
                   .positions = rows.span(),
                   .round_to_bf16 = heads.round};
  std::optional<RopeTable> table;
  if (heads.rope)
    prep.rope = &table.emplace(context, RopeSpec{.theta = 1000, .dims = heads.head_dim});
  if (fused) {
    PrepareHeads(context, prep);
    return data.Read();
  }
  PrepareHeads(context, {.queries = prep.queries, .beta = prep.beta});
  PrepareHeads(context, {.queries = prep.keys});
  for (const HeadRows& x : {prep.queries, prep.keys}) {
    if (!heads.rope) continue;
    PrepareHeads(
        context,
        {.queries = x, .norm = HeadNorm::kNone, .rope = prep.rope, .positions = prep.positions});
  }
  std::vector<float> prepared = data.Read();
  if (!heads.round) return prepared;
  for (size_t i = 0; i < prepared.size(); ++i) {
    if (static_cast<int64_t>(i) % heads.stride() < heads.stride() - 9) {
      prepared[i] = ToFloat(RoundToBF16(prepared[i]));
    }
  }
  return prepared;
}

std::vector<PreparedHeads> PrepareCases() {
  std::vector<PreparedHeads> cases;
  for (bool round : {false, true}) {
    cases.push_back({.n_queries = 6, .n_keys = 2, .head_dim = 64, .rope = true, .round = round});
    cases.push_back({.n_queries = 11, .n_keys = 11, .head_dim = 16, .rope = false, .round = round});
    cases.push_back({.n_queries = 1, .n_keys = 1, .head_dim = 35, .rope = false, .round = round});
    cases.push_back({.n_queries = 2, .n_keys = 1, .head_dim = 130, .rope = true, .round = round});
  }
  return cases;
}

using PrepareDevices = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(, PrepareDevices, testing::ValuesIn(test::TestDevices()),
                         test::NameOfDevice);

TEST_P(PrepareDevices, SameBitsAsItsOperationsInAnyCompany) {
  const std::vector<int64_t> positions{3, 0, int64_t{1} << 33, 70000, 5};
  for (const PreparedHeads& heads : PrepareCases()) {
    const std::string what =
        absl::StrCat("head_dim ", heads.head_dim, " rope ", heads.rope, " round ", heads.round);
    const auto stride = static_cast<size_t>(heads.stride());
    const std::vector<float> x = RandomNormal(positions.size() * stride, 32);
    const std::vector<float> all = RunPrepare(*context_, heads, x, positions, true);
    AssertSameBits(all, RunPrepare(*context_, heads, x, positions, false), what);
    for (size_t row = 0; row < positions.size(); ++row) {
      AssertSameBits(RunPrepare(*context_, heads, std::span(x).subspan(row * stride, stride),
                                std::span(positions).subspan(row, 1), true),
                     std::span(all).subspan(row * stride, stride), what);
    }
  }
}

// The factors that transformers' code of Llama 4 gives, in float32, for queries alone:
//   torch.log(torch.floor((position + 1.0) / floor_scale) + 1.0) * attn_scale + 1.0
TEST_P(RopeDevices, QueriesGrowAsInLlama4) {
  struct Case {
    QueryGrowth growth;
    std::vector<float> factors;
  };
  const std::vector<int64_t> positions{0, 998, 999, 8190, 8191, 16383, 262143, 1048575, 10000000};
  const auto n = static_cast<int64_t>(positions.size());
  constexpr int kHeadDim = 35;
  for (const Case& c :
       {Case{{0.1f, 8192},
             {1, 1, 1, 1, 1.06931472f, 1.10986125f, 1.34965074f, 1.48598123f, 1.71074259f}},
        Case{{0.3f, 1000},
             {1, 1, 1.20794415f, 1.65916741f, 1.65916741f, 1.84996402f, 2.67164612f, 3.08667779f,
              3.76313233f}}}) {
    const int64_t stride = 3 * kHeadDim;  // a row has two queries and a key
    const std::vector<float> before = RandomNormal(static_cast<size_t>(n * stride), 15);
    std::vector<float> expected = before;
    for (int64_t i = 0; i < n * stride; ++i) {
      if (i % stride < 2 * kHeadDim) expected[i] *= c.factors[i / stride];
    }
    const DeviceArray<float> data(*context_, before);
    const DeviceArray<int64_t> rows(*context_, positions);
    GrowQueries(*context_, {data.data(), n, 2, kHeadDim, stride}, c.growth, rows.span(), false);
    // Their logarithm, product and sum are rounded, of which the first two have a part of the sum,
    // our factor is, and both elements are.
    AssertClose(
        data.Read(), expected, [&](size_t i) { return 4 * kRoundF32 * std::abs(expected[i]); },
        absl::StrCat("scale ", c.growth.scale));
  }
}

// In bfloat16 too, and in any company.
TEST_P(RopeDevices, GrownQueriesAreRoundedAndDependOnTheirPositionAlone) {
  constexpr int kHeadDim = 16;
  constexpr int64_t kStride = 5 * kHeadDim;
  const std::vector<int64_t> positions{5, 0, int64_t{1} << 42, 99, 3};
  const QueryGrowth growth = {0.25f, 4};
  const auto run = [&](std::span<const float> x, std::span<const int64_t> at, bool round) {
    const DeviceArray<float> data(*context_, x);
    const DeviceArray<int64_t> rows(*context_, at);
    GrowQueries(*context_, {data.data(), std::ssize(at), 5, kHeadDim, kStride}, growth, rows.span(),
                round);
    return data.Read();
  };
  const std::vector<float> before = RandomNormal(positions.size() * kStride, 16);
  std::vector<float> grown = run(before, positions, false);
  for (size_t row = 0; row < positions.size(); ++row) {
    const auto at = std::span(positions).subspan(row, 1);
    AssertSameBits(run(std::span(before).subspan(row * kStride, kStride), at, false),
                   std::span(grown).subspan(row * kStride, kStride), "alone");
  }
  for (float& x : grown) x = ToFloat(RoundToBF16(x));
  AssertSameBits(run(before, positions, true), grown, "rounded");
}

// The KVM paper's code: pairs of neighbours turn backwards, the last pair by 1 / theta a position,
// the first `dims` channels of a head only.
TEST_P(RopeDevices, PairsOfNeighboursTurnBackwards) {
  const std::vector<int64_t> positions{0, 1, 7, 5000, int64_t{1} << 40};
  for (int dims : {2, 4, 16, 64}) {
    const int head_dim = 66, n_heads = 2;
    const int64_t stride = n_heads * head_dim;
    const auto n = static_cast<int64_t>(positions.size());
    const std::vector<float> before = RandomNormal(static_cast<size_t>(n * stride), 9);
    std::vector<float> expected = before;
    for (int64_t i = 0; i < n * stride; ++i) {
      const int64_t row = i / stride, channel = i % head_dim, pair = channel / 2,
                    n_pairs = dims / 2;
      if (channel >= dims) continue;
      const long double exponent =
          n_pairs == 1 ? 0 : static_cast<long double>(pair) / (n_pairs - 1);
      const long double angle = static_cast<long double>(positions[static_cast<size_t>(row)]) *
                                std::pow(500.0L, -exponent);
      const auto at = static_cast<size_t>(i);
      const long double cosine = std::cos(angle), sine = std::sin(angle);
      expected[at] =
          static_cast<float>(channel % 2 == 0 ? before[at] * cosine + before[at + 1] * sine
                                              : before[at] * cosine - before[at - 1] * sine);
    }
    const DeviceArray<float> data(*context_, before);
    const DeviceArray<int64_t> rows(*context_, positions);
    const RopeTable table(*context_,
                          {.layout = RopeSpec::Layout::kPairs, .theta = 500, .dims = dims});
    PrepareHeads(*context_, {.queries = {data.data(), n, n_heads, head_dim, stride},
                             .norm = HeadNorm::kNone,
                             .rope = &table,
                             .positions = rows.span()});
    // See ExtremePositions: four roundings of both elements, and 2^-24 of an angle far away.
    AssertClose(
        data.Read(), expected,
        [&](size_t i) { return 6 * kRoundF32 * (std::abs(before[i]) + std::abs(before[i ^ 1])); },
        absl::StrCat("dims ", dims));
  }
}

// Factors slow pairs down, and the amplitude lengthens them; channels that do not turn stay.
TEST_P(RopeDevices, FrequenciesMayHaveFactors) {
  constexpr int kHeadDim = 70;
  const std::vector<double> factors{1, 0.25, 1 / 3.0};
  const std::vector<int64_t> positions{0, 3, 70001};
  const auto n = static_cast<int64_t>(positions.size());
  const std::vector<float> before = RandomNormal(static_cast<size_t>(n * kHeadDim), 14);
  std::vector<float> expected = before;
  for (size_t row = 0; row < positions.size(); ++row) {
    for (size_t pair = 0; pair < factors.size(); ++pair) {
      const long double angle = static_cast<long double>(positions[row]) * factors[pair] *
                                std::pow(500.0L, -static_cast<long double>(pair) / 3);
      const long double cosine = 1.25L * std::cos(angle), sine = 1.25L * std::sin(angle);
      const size_t a = row * kHeadDim + pair, b = a + 3;
      expected[a] = static_cast<float>(before[a] * cosine - before[b] * sine);
      expected[b] = static_cast<float>(before[b] * cosine + before[a] * sine);
    }
  }
  const DeviceArray<float> data(*context_, before);
  const DeviceArray<int64_t> rows(*context_, positions);
  const RopeTable table(*context_,
                        {.theta = 500, .dims = 6, .factors = factors, .amplitude = 1.25});
  PrepareHeads(*context_, {.queries = {data.data(), n, 1, kHeadDim, kHeadDim},
                           .norm = HeadNorm::kNone,
                           .rope = &table,
                           .positions = rows.span()});
  AssertClose(
      data.Read(), expected, [&](size_t) { return 40 * kRoundF32; }, "factors");
}

TEST_P(RopeDevices, SinesAndCosinesOfBFloat16) {
  const RopeTable table(*context_,
                        {.layout = RopeSpec::Layout::kPairs, .dims = 2, .rounds_to_bf16 = true});
  const std::vector<float> x{1, 0};
  const std::vector<int64_t> positions{3};
  const DeviceArray<float> data(*context_, x);
  const DeviceArray<int64_t> rows(*context_, positions);
  PrepareHeads(*context_, {.queries = {data.data(), 1, 1, 2, 2},
                           .norm = HeadNorm::kNone,
                           .rope = &table,
                           .positions = rows.span()});
  EXPECT_EQ(data.Read(),
            (std::vector<float>{ToFloat(RoundToBF16(static_cast<float>(std::cos(3.0)))),
                                -ToFloat(RoundToBF16(static_cast<float>(std::sin(3.0))))}));
}

// Sine or cosine, product, sum and what is expected round once each; the angle is as in
// ExtremePositions.
TEST_P(RopeDevices, SinusoidsAreAddedAtAnyPosition) {
  constexpr int64_t kFar = int64_t{1} << 40;
  const std::vector<int64_t> positions{0, 1, 12, 100000, (1 << 24) + 1, kFar, kFar + 12345};
  constexpr float kScale = -0.3f;
  for (int width : {2, 6, 48, 600}) {
    const auto row_size = static_cast<size_t>(width), pairs = row_size / 2;
    const std::vector<float> before = RandomNormal(positions.size() * row_size, 12);
    std::vector<float> expected = before;
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t channel = i % row_size;
      const long double angle =
          static_cast<long double>(positions[i / row_size]) *
          std::pow(100000.0L, -2.0L * static_cast<long double>(channel % pairs) / width);
      const long double wave = channel < pairs ? std::sin(angle) : std::cos(angle);
      expected[i] = static_cast<float>(before[i] + kScale * wave);
    }
    const DeviceArray<float> y(*context_, before);
    const DeviceArray<int64_t> rows(*context_, positions);
    const RopeTable table(*context_, {.theta = 100000, .dims = width});
    AddSinusoids(*context_, table, rows.span(), kScale,
                 y.View({static_cast<int64_t>(positions.size()), width}));
    AssertClose(
        y.Read(), expected,
        [&](size_t i) {
          const double angle_error = 2 * static_cast<double>(positions[i / row_size]) * 0x1p-64;
          return 0.3 * (3 * kRoundF32 + angle_error) + 2 * kRoundF32 * std::abs(expected[i]);
        },
        absl::StrCat("width ", width));
  }
}

using EmbedDevices = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(, EmbedDevices, testing::ValuesIn(test::TestDevices()),
                         test::NameOfDevice);

template <class T, class Y = float>
std::vector<Y> RunEmbed(DeviceContext& context, std::span<const T> table,
                        std::span<const int32_t> ids, int64_t width) {
  const DeviceArray<T> rows(context, table);
  const DeviceArray<int32_t> id_list(context, ids);
  const DeviceArray<Y> y(context, ids.size() * static_cast<size_t>(width));
  Embed(context, rows.View({static_cast<int64_t>(table.size()) / width, width}), id_list.span(),
        y.View({static_cast<int64_t>(ids.size()), width}));
  return y.Read();
}

TEST_P(EmbedDevices, CopiesRowsExactly) {
  constexpr size_t kVocab = 50;
  constexpr size_t kDim = 301;
  const std::vector<float> f32 = RandomNormal(kVocab * kDim, 11);
  const std::vector<BF16> bf16 = test::Rounded(f32);
  std::vector<uint16_t> f16(f32.size());  // every kind of number, infinities included
  for (size_t i = 0; i < f16.size(); ++i) {
    f16[i] = static_cast<uint16_t>((i * 31 % 0x7c01) | i % 2 << 15);
  }
  std::vector<int32_t> ids(GetParam() == Device::kCuda ? 60 : 400);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % kVocab);
  const auto check = [&](const char* what, const std::vector<float>& y, auto expected) {
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t from = static_cast<size_t>(ids[i / kDim]) * kDim + i % kDim;
      ASSERT_EQ(y[i], expected(from)) << what << " element " << i;
    }
  };
  check("F32", RunEmbed<float>(*context_, f32, ids, kDim), [&](size_t i) { return f32[i]; });
  check("BF16", RunEmbed<BF16>(*context_, bf16, ids, kDim),
        [&](size_t i) { return ToFloat(bf16[i]); });
  check("F16", RunEmbed<uint16_t>(*context_, f16, ids, kDim),
        [&](size_t i) { return HalfToFloat(f16[i]); });
  AssertSameBits(test::Widened(RunEmbed<float, BF16>(*context_, f32, ids, kDim)),
                 RunEmbed<BF16>(*context_, bf16, ids, kDim), "rounded");
}

}  // namespace
}  // namespace ovq::kernels
