// Options of published checkpoints around attention: RMS norms of heads, scales alone, RoPE of a
// head's first channels or of neighbours, and gates of the output. Expected values are computed
// here in double.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
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
using test::RandomNormal;

using HeadDevices = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(, HeadDevices, testing::ValuesIn(test::TestDevices()), test::NameOfDevice);

constexpr float kEps = 0.25f;

// Queries [n, 3, d] and keys [n, 2, d] side by side in rows that are 5 d + 3 apart.
struct Heads {
  static constexpr int kQueries = 3, kKeys = 2;
  int n_rows, head_dim;
  int64_t stride() const { return int64_t{kQueries + kKeys} * head_dim + 3; }
};

// The head that element i of the rows belongs to, counted over a row; -1 behind the last.
int HeadIndex(const Heads& heads, size_t i) {
  const auto column = static_cast<int>(i % static_cast<size_t>(heads.stride()));
  const int head = column / heads.head_dim;
  return head < Heads::kQueries + Heads::kKeys ? head : -1;
}

// sum of squares: of d products, each rounded; see NormTolerance of norm_act_test.cc. The root, the
// quotient and two products round once each.
double HeadNormTolerance(int d) { return (d / 8.0 + 8) * kRoundF32; }

TEST_P(HeadDevices, RmsNormOfHeads) {
  for (int d : {1, 7, 16, 64, 130}) {
    const Heads heads = {5, d};
    const auto width = static_cast<size_t>(d);
    const auto size = static_cast<size_t>(heads.n_rows * heads.stride());
    const std::vector<float> x = RandomNormal(size, 1), of_queries = RandomNormal(width, 2),
                             of_keys = RandomNormal(width, 3);
    const DeviceArray<float> data(*context_, x), query_norm(*context_, of_queries),
        key_norm(*context_, of_keys);
    PrepareHeads(*context_,
                 {.queries = {data.data(), 5, Heads::kQueries, d, heads.stride()},
                  .keys = {data.data() + Heads::kQueries * d, 5, Heads::kKeys, d, heads.stride()},
                  .norm = HeadNorm::kRms,
                  .query_norm = query_norm.data(),
                  .key_norm = key_norm.data(),
                  .eps = kEps});
    std::vector<float> expected = x;
    for (size_t i = 0; i < size; ++i) {
      const int head = HeadIndex(heads, i);
      if (head < 0) continue;
      const size_t row =
          i / static_cast<size_t>(heads.stride()) * static_cast<size_t>(heads.stride());
      const size_t begin = row + static_cast<size_t>(head) * width;
      double squares = 0;
      for (size_t j = begin; j < begin + width; ++j) squares += double{x[j]} * x[j];
      const std::vector<float>& weight = head < Heads::kQueries ? of_queries : of_keys;
      expected[i] = static_cast<float>(x[i] / std::sqrt(squares / d + kEps) * weight[i - begin]);
    }
    AssertClose(
        data.Read(), expected,
        [&](size_t i) { return HeadNormTolerance(d) * std::abs(expected[i]); },
        absl::StrCat("head_dim ", d));
  }
}

TEST_P(HeadDevices, WithoutANormQueriesAreScaled) {
  const Heads heads = {4, 9};
  const std::vector<float> x = RandomNormal(static_cast<size_t>(4 * heads.stride()), 4);
  const std::vector<float> scales{0.5f, 1, -3};
  const DeviceArray<float> data(*context_, x), beta(*context_, scales);
  PrepareHeads(*context_,
               {.queries = {data.data(), 4, Heads::kQueries, 9, heads.stride()},
                .keys = {data.data() + Heads::kQueries * 9, 4, Heads::kKeys, 9, heads.stride()},
                .norm = HeadNorm::kNone,
                .beta = beta.data()});
  std::vector<float> expected = x;
  for (size_t i = 0; i < x.size(); ++i) {
    const int head = HeadIndex(heads, i);
    if (head >= 0 && head < Heads::kQueries) expected[i] *= scales[static_cast<size_t>(head)];
  }
  AssertSameBits(data.Read(), expected, "one product");
}

// The two channels of pair i.
struct Turn {
  RopeSpec::Layout layout;
  int dims;
  size_t low(int i) const { return layout == RopeSpec::Layout::kHalves ? i : 2 * i; }
  size_t high(int i) const {
    return layout == RopeSpec::Layout::kHalves ? i + dims / 2 : 2 * i + 1;
  }
};

// theta^(-2i / dims) of the channels turned, whatever is behind them; forwards.
TEST_P(HeadDevices, RopeOfTheFirstChannels) {
  constexpr double kTheta = 500;
  const std::vector<int64_t> positions{0, 1, 77, 5000};
  const auto n = static_cast<int64_t>(positions.size());
  for (const auto& [turn, d] : {std::pair(Turn{RopeSpec::Layout::kHalves, 6}, 24),
                                std::pair(Turn{RopeSpec::Layout::kHalves, 2}, 17),
                                std::pair(Turn{RopeSpec::Layout::kHalves, 64}, 200),
                                std::pair(Turn{RopeSpec::Layout::kInterleaved, 12}, 12),
                                std::pair(Turn{RopeSpec::Layout::kInterleaved, 2}, 2),
                                std::pair(Turn{RopeSpec::Layout::kInterleaved, 64}, 131)}) {
    const auto width = static_cast<size_t>(d);
    const std::vector<float> x = RandomNormal(positions.size() * 2 * width, 5);
    const DeviceArray<float> data(*context_, x);
    const DeviceArray<int64_t> rows(*context_, positions);
    const RopeTable table(*context_, {.layout = turn.layout, .theta = kTheta, .dims = turn.dims});
    PrepareHeads(*context_, {.queries = {data.data(), n, 2, d, 2 * d},
                             .norm = HeadNorm::kNone,
                             .rope = &table,
                             .positions = rows.span()});
    std::vector<float> expected = x;
    std::vector<double> tolerance(x.size(), 0);
    for (size_t head = 0; head < 2 * positions.size(); ++head) {
      for (int i = 0; i < turn.dims / 2; ++i) {
        const double angle =
            static_cast<double>(positions[head / 2]) * std::pow(kTheta, -2.0 * i / turn.dims);
        const size_t low = head * width + turn.low(i), high = head * width + turn.high(i);
        const double c = std::cos(angle), s = std::sin(angle);
        expected[low] = static_cast<float>(x[low] * c - x[high] * s);
        expected[high] = static_cast<float>(x[high] * c + x[low] * s);
        // Sine, cosine, two products and a sum round once each; the angle here is in double.
        tolerance[low] = tolerance[high] = 5 * kRoundF32 * (std::abs(x[low]) + std::abs(x[high]));
      }
    }
    AssertClose(
        data.Read(), expected, [&](size_t i) { return tolerance[i]; },
        absl::StrCat("head_dim ", d, ", ", turn.dims, " turned"));
  }
}

template <class T>
std::vector<T> RunGate(DeviceContext& context, std::span<const T> x, std::span<const float> gate,
                       int64_t width, int64_t stride) {
  const DeviceArray<T> data(context, x);
  const DeviceArray<float> gates(context, gate);
  GateBySigmoid(context, data.View({static_cast<int64_t>(x.size()) / width, width}), gates.data(),
                stride);
  return data.Read();
}

TEST_P(HeadDevices, GatesBySigmoid) {
  for (int64_t width : {1, 5, 64, 1031}) {
    const int64_t n = 6, stride = width + 4;
    const std::vector<float> x = RandomNormal(static_cast<size_t>(n * width), 6);
    std::vector<float> gate = RandomNormal(static_cast<size_t>(n * stride), 7);
    gate[0] = 200;
    gate[static_cast<size_t>(stride)] = -200;
    const auto expect = [&](std::span<const float> from) {
      std::vector<float> expected(from.begin(), from.end());
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const float z = gate[static_cast<size_t>(at / width * stride + at % width)];
        expected[i] = static_cast<float>(expected[i] / (1 + std::exp(-double{z})));
      }
      return expected;
    };
    // An exponential good to two roundings, a sum, a quotient and a product.
    const std::vector<float> expected = expect(x);
    AssertClose(
        RunGate<float>(*context_, x, gate, width, stride), expected,
        [&](size_t i) { return 8 * kRoundF32 * std::abs(expected[i]) + 1e-37; },
        absl::StrCat("width ", width));
    const std::vector<BF16> narrow = test::Rounded(x);
    const std::vector<float> wide = expect(test::Widened(narrow));
    AssertClose(
        test::Widened(RunGate<BF16>(*context_, narrow, gate, width, stride)), wide,
        [&](size_t i) { return (0x1p-8 + 8 * kRoundF32) * std::abs(wide[i]) + 1e-37; },
        absl::StrCat("bfloat16, width ", width));
  }
}

TEST_P(HeadDevices, CopiesRoundToNearest) {
  for (int64_t width : {1, 6, 513}) {
    const std::vector<float> x = RandomNormal(static_cast<size_t>(7 * width), 8);
    const DeviceArray<float> from(*context_, x), same(*context_, x.size());
    const DeviceArray<BF16> narrow(*context_, x.size());
    Copy(*context_, from.View({7, width}), same.View({7, width}));
    Copy(*context_, from.View({7, width}), narrow.View({7, width}));
    AssertSameBits(same.Read(), x, "float32");
    AssertSameBits(test::Widened(narrow.Read()), test::Widened(test::Rounded(x)), "bfloat16");
  }
}

}  // namespace
}  // namespace ovq::kernels
