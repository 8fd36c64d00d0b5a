#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "tests/test_util.h"

namespace ovq {
namespace {

using test::AssertClose;
using test::AssertSameBits;
using test::GuardedBuffer;
using test::kRoundF32;
using test::MakeContext;
using test::RandomNormal;
using test::ViewOf;

class RopeDevices : public testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(, RopeDevices, testing::Values(Device::kReference, Device::kCpu),
                         [](const auto& info) { return std::string(DeviceName(info.param)); });

// A single pair turns by one radian a position whatever theta is.
TEST_P(RopeDevices, OnePairTurnsByThePosition) {
  auto context = MakeContext(GetParam());
  std::vector<float> x{1, 0, 0, 2};
  const std::vector<int64_t> positions{1, 3};
  Rope(*context, {x.data(), 2, 1, 2, 2}, positions, RopeTable(*context, 10000, 2));
  const std::vector<double> expected{std::cos(1.0), std::sin(1.0), -2 * std::sin(3.0),
                                     2 * std::cos(3.0)};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(x[i], expected[i], 4 * kRoundF32) << i;
}

// Far positions, in long double: the angle is right to position * 2^-64 (relative to a frequency of
// at most 1), so 2^-24 at position 2^40. Cosine, sine, two products and a sum round once each.
TEST_P(RopeDevices, ExtremePositions) {
  auto context = MakeContext(GetParam());
  constexpr int64_t kFar = int64_t{1} << 40;
  const std::vector<int64_t> positions{
      0, 1, 127, 32768, (1 << 24) + 1, int64_t{1} << 31, kFar, kFar + 12345};
  for (int head_dim : {2, 6, 16, 64, 128, 258}) {
    const int n_heads = 3;
    const int64_t stride = n_heads * head_dim + 5;
    const auto n = static_cast<int64_t>(positions.size());
    const std::vector<float> before = RandomNormal(static_cast<size_t>(n * stride), 7);
    GuardedBuffer<float> x{std::span<const float>(before)};
    Rope(*context, {x.data(), n, n_heads, head_dim, stride}, positions,
         RopeTable(*context, 10000, head_dim));

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
        x.span(), expected, [&](size_t i) { return tolerance[i]; },
        absl::StrCat("head_dim ", head_dim));
  }
}

// The score of a query and a key depends on their distance alone, at any position an int64 holds.
TEST(RopeCpu, DistanceIsExactAtAnyPosition) {
  constexpr int kDim = 128;
  auto context = MakeContext(Device::kCpu);
  const RopeTable table(*context, 10000, kDim);
  const std::vector<float> qk = RandomNormal(2 * kDim, 8);
  const auto score = [&](int64_t position) {
    std::vector<float> x = qk;
    const std::vector<int64_t> positions{position + 37, position};
    Rope(*context, {x.data(), 2, 1, kDim, kDim}, positions, table);
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

TEST(RopeCpu, RowsDoNotDependOnTheirCompany) {
  constexpr int64_t kRows = 301;
  constexpr int kHeads = 4;
  constexpr int kDim = 64;
  constexpr int64_t kStride = kHeads * kDim;
  const std::vector<float> before = RandomNormal(kRows * kStride, 9);
  std::vector<int64_t> positions(kRows);
  for (size_t i = 0; i < kRows; ++i) positions[i] = static_cast<int64_t>(i * i * 977);
  auto one = MakeContext(Device::kCpu, 1);
  auto two = MakeContext(Device::kCpu, 2);
  const RopeTable table(*two, 500000, kDim);
  std::vector<float> all = before;
  Rope(*two, {all.data(), kRows, kHeads, kDim, kStride}, positions, table);
  std::vector<float> single = before;
  for (int64_t row = kRows - 1; row >= 0; --row) {
    Rope(*one, {single.data() + row * kStride, 1, kHeads, kDim, kStride},
         std::span(positions).subspan(static_cast<size_t>(row), 1), table);
  }
  AssertSameBits(all, single, "Rope");
}

class EmbedDevices : public testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(, EmbedDevices, testing::Values(Device::kReference, Device::kCpu),
                         [](const auto& info) { return std::string(DeviceName(info.param)); });

TEST_P(EmbedDevices, CopiesRowsExactly) {
  constexpr int64_t kVocab = 50;
  constexpr int64_t kDim = 301;
  auto context = MakeContext(GetParam(), 2);
  std::vector<float> f32 = RandomNormal(kVocab * kDim, 11);
  std::vector<BF16> bf16 = test::Rounded(f32);
  std::vector<uint16_t> f16(f32.size());
  for (size_t i = 0; i < f16.size(); ++i) f16[i] = static_cast<uint16_t>(i * 31 % 0x7c00);
  std::vector<int32_t> ids(400);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % kVocab);
  ids.back() = kVocab - 1;
  const auto n = static_cast<int64_t>(ids.size());
  for (const TensorView& table :
       {ViewOf(f32, {kVocab, kDim}), ViewOf(bf16, {kVocab, kDim}), ViewOf(f16, {kVocab, kDim})}) {
    GuardedBuffer<float> y(ids.size() * kDim);
    Embed(*context, table, ids, y.View({n, kDim}));
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t from = static_cast<size_t>(ids[i / kDim]) * kDim + i % kDim;
      const float expected = table.dtype == DType::kF32    ? f32[from]
                             : table.dtype == DType::kBF16 ? ToFloat(bf16[from])
                                                           : HalfToFloat(f16[from]);
      ASSERT_EQ(y[i], expected) << DTypeName(table.dtype) << " element " << i;
    }
  }
}

}  // namespace
}  // namespace ovq
