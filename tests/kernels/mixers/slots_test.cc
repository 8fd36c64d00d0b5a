// Types of slots, above all int8 with a scale for each slot.
#include "kernels/mixers/common/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/stochastic_rounding.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

std::vector<float> Normal(size_t n, uint32_t seed, float size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> row(n);
  for (float& x : row) x = normal(random);
  return row;
}

float Largest(const std::vector<float>& row) {
  float largest = 0;
  for (float x : row) largest = std::max(largest, std::abs(x));
  return largest;
}

// A block of 64 keys or values.
struct Block {
  explicit Block(int channels) : channels(channels), bytes(BlockBytes(DType::kI8, channels)) {}
  Int8* rows() { return reinterpret_cast<Int8*>(bytes.data()); }

  int channels;
  std::vector<std::byte> bytes;
};

std::vector<float> AsStored(const std::vector<float>& row) {
  const auto n = static_cast<int>(row.size());
  Block block(n);
  std::vector<float> stored(row.size());
  StoreKey(row.data(), n, DType::kI8, block.rows(), 5);
  LoadKey(block.rows(), DType::kI8, n, 5, stored.data());
  return stored;
}

TEST(Int8Rows, TakeTheSmallestPowerOfTwoThatHoldsTheirLargestChannel) {
  const auto scale = [](float x) {
    return ExponentScale(Slots<Int8>::Exponent(MagnitudeBits(&x, 1)));
  };
  EXPECT_EQ(scale(127), 1.0f);
  EXPECT_EQ(scale(-64), 1.0f);
  EXPECT_EQ(scale(63.5f), 0.5f);
  EXPECT_EQ(scale(127.1f), 2.0f);
  EXPECT_EQ(scale(0x1p-130f), 0.0f);
  EXPECT_EQ(scale(0), 0.0f);
  EXPECT_EQ(Slots<Int8>::Exponent(MagnitudeBits(std::vector<float>{1, NAN, 2}.data(), 3)),
            kBrokenExponent);
  float most = std::numeric_limits<float>::max();
  EXPECT_EQ(Slots<Int8>::Exponent(MagnitudeBits(&most, 1)), kMaxExponent);
}

TEST(Int8Rows, RoundToNearestAndAreExactOnceRounded) {
  for (const float size : {1.0f, 1e-6f, 3e20f}) {
    const std::vector<float> row = Normal(40, 3, size), stored = AsStored(row);
    const float unit = ExponentScale(Slots<Int8>::Exponent(MagnitudeBits(row.data(), 40)));
    EXPECT_LE(Largest(row), 127 * unit);
    EXPECT_GT(Largest(row), 63 * unit);
    for (size_t i = 0; i < row.size(); ++i) EXPECT_LE(std::abs(stored[i] - row[i]), unit / 2);
    EXPECT_EQ(AsStored(stored), stored);
  }
  EXPECT_EQ(Slots<Int8>::Nearest(0.5f).q, 0);
  EXPECT_EQ(Slots<Int8>::Nearest(-1.5f).q, -2);
  EXPECT_EQ(Slots<Int8>::Nearest(126.5f).q, 126);
}

TEST(Int8Rows, ZerosStayAndWhatIsNotFiniteIsNoNumber) {
  EXPECT_EQ(AsStored(std::vector<float>(8, 0.0f)), std::vector<float>(8, 0.0f));
  for (const float broken : {NAN, HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> row = Normal(8, 4);
    row[3] = broken;
    for (float x : AsStored(row)) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(Int8Rows, StochasticRoundingKeepsWhatIsExactAndIsUnbiased) {
  for (const uint32_t random16 : {0u, 1u, 0x8000u, 0xffffu}) {
    for (const int q : {-127, -3, 0, 1, 127}) {
      EXPECT_EQ(Slots<Int8>::Stochastic(static_cast<float>(q), random16).q, q);
    }
  }
  for (const float x : {0.3f, -0.3f, 100.7f, -126.9f}) {
    double sum = 0;
    for (uint32_t random16 = 0; random16 < 65536; ++random16)
      sum += Slots<Int8>::Stochastic(x, random16).q;
    EXPECT_NEAR(sum / 65536, x, 0x1p-15) << x;
  }
}

// A mean rounded to nearest stops moving once a batch is below half a unit.
TEST(Int8Rows, RunningMeansDoNotStall) {
  constexpr int kKeys = 20000, kChannels = 16;
  std::vector<Int8> nearest(kChannels + 1), stochastic(kChannels + 1);
  const auto row = [](std::vector<Int8>& of) {
    return SlotRow<Int8>{of.data(), 1, &of[kChannels]};
  };
  for (int i = 1; i <= kKeys; ++i) {
    const float key = i <= kKeys / 2 ? 0.5f : 1.0f;
    const auto merged = [&](std::vector<Int8>& of) {
      std::vector<float> mean(kChannels);
      row(of).Load(kChannels, mean.data());
      for (float& x : mean) x += (key - x) / static_cast<float>(i);
      return mean;
    };
    StoreNearest(merged(nearest).data(), kChannels, 1, row(nearest));
    RoundRow(merged(stochastic).data(), kChannels, {0, 0, 0, false, i}, row(stochastic));
  }
  double mean = 0;
  for (int c = 0; c < kChannels; ++c) mean += row(stochastic)[c] / kChannels;
  EXPECT_LT(row(nearest)[0], 0.6f);  // the true mean is 0.75
  EXPECT_NEAR(mean, 0.75, 0.03);
}

// The tensor cores' way of widening four elements at a time is the plain one.
TEST(Int8Rows, WidenInFoursToWhatTheyAre) {
  for (int q = -128; q < 128; ++q) {
    const std::array<int8_t, 4> four = {static_cast<int8_t>(q), 1, static_cast<int8_t>(-q), -128};
    const std::array<float, 4> wide = Slots<Int8>::Widen(std::bit_cast<uint32_t>(four));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(wide[i], ToFloat(Int8{four[i]}));
  }
}

// A dtype finds its type among those that are visited, and each has a name of its own.
TEST(Slots, AreVisitedByTheirDType) {
  for (const DType dtype : AllSlots::kDTypes) {
    const DType all = VisitSlots(dtype, []<class T>(Slots<T>) { return Slots<T>::kDType; });
    EXPECT_EQ(all, dtype);
    if (IsScaled(dtype)) continue;
    const size_t bytes = VisitSlots(dtype, []<Unscaled T>(Slots<T>) { return sizeof(T); });
    EXPECT_EQ(bytes, DTypeBytes(dtype));
  }
  EXPECT_DEATH((VisitSlots(DType::kI8, []<Unscaled T>(Slots<T>) { return 0; })), "a type");
  EXPECT_DEATH((VisitSlots(DType::kI32, []<class T>(Slots<T>) { return 0; })), "a type");
}

// Scales are powers of two, so attention over int8 rows is, bit for bit, attention over the same
// rows in float32: few rows and many, dictionary blocks with probes and recent ones.
TEST(Int8Rows, AttentionIsThatOfTheSameRowsInFloat32) {
  constexpr int kHeadDim = 40, kValueDim = 24, kStride = ValueStride(kValueDim), kBlocks = 3;
  std::vector<Block> keys(kBlocks, Block(kHeadDim)), values(kBlocks, Block(kStride));
  std::vector<std::vector<float>> wide_keys, wide_values;
  const std::vector<float> bias = Normal(kBlockSlots, 8);
  std::vector<KvBlock> narrow, wide;
  for (int b = 0; b < kBlocks; ++b) {
    wide_keys.emplace_back(static_cast<size_t>(kHeadDim) * kBlockSlots);
    wide_values.emplace_back(static_cast<size_t>(kStride) * kBlockSlots);
    for (int s = 0; s < kBlockSlots; ++s) {
      const auto seed = static_cast<uint32_t>(b * kBlockSlots + s);
      const float size = std::ldexp(1.0f, s % 7 - 3);
      std::vector<float> key = Normal(kHeadDim, seed, size / 4),
                         value = Normal(kValueDim, 1000 + seed, size);
      StoreKey(key.data(), kHeadDim, DType::kI8, keys[b].rows(), s);
      StoreValue(value.data(), kValueDim, kStride, DType::kI8, values[b].rows(), s);
      LoadKey(keys[b].rows(), DType::kI8, kHeadDim, s, key.data());
      LoadValue(values[b].rows(), DType::kI8, kValueDim, kStride, s, value.data());
      StoreKey(key.data(), kHeadDim, DType::kF32, wide_keys[b].data(), s);
      StoreValue(value.data(), kValueDim, kStride, DType::kF32, wide_values[b].data(), s);
    }
    const bool recent = b == kBlocks - 1;
    narrow.push_back({keys[b].rows(), values[b].rows(), recent ? nullptr : bias.data(),
                      recent ? -1 : kBlockSlots - b, 0});
    wide.push_back(narrow.back());
    wide.back().keys = wide_keys[b].data();
    wide.back().values = wide_values[b].data();
  }
  for (const int n : {1, 3, 4, 9, 30}) {
    const std::vector<float> rows = Normal(static_cast<size_t>(2 * n * kHeadDim), 77);
    std::vector<const float*> places;
    std::vector<int32_t> position;
    for (int i = 0; i < 2 * n; ++i) places.push_back(rows.data() + i * kHeadDim);
    for (int i = 0; i < n; ++i) position.push_back(i * 2);
    const auto attend = [&](DType dtype, const std::vector<KvBlock>& blocks) {
      std::vector<float> all(static_cast<size_t>(n * kStride)), best(static_cast<size_t>(n));
      std::vector<int32_t> slots(static_cast<size_t>(n));
      std::vector<float> scratch(BlockAttentionScratch(2 * n, kHeadDim, kStride));
      AttendBlocksCpu({.dtype = dtype,
                       .head_dim = kHeadDim,
                       .value_stride = kStride,
                       .window = 0,
                       .blocks = blocks,
                       .rows = places.data(),
                       .n_queries = n,
                       .query_position = position.data(),
                       .out = all.data(),
                       .n_probes = n,
                       .best_score = best.data(),
                       .best_slot = slots.data(),
                       .scratch = scratch.data()});
      all.insert(all.end(), best.begin(), best.end());
      for (int32_t slot : slots) all.push_back(static_cast<float>(slot));
      return all;
    };
    AssertSameBits(attend(DType::kI8, narrow), attend(DType::kF32, wide), "attention");
  }
}

}  // namespace
}  // namespace ovq::kernels::test
