#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

MixerCase KeyDiffCase(int64_t chunk_len, int64_t slot_cap, DType kv_dtype = DType::kF32) {
  return {.type = "key_diff_attention",
          .name = "",
          .model = {{"num_attention_heads", int64_t{2}}, {"head_dim", int64_t{24}}},
          .section = {{"chunk_size", chunk_len}},
          .weights = {{"self_attn.beta", {6.0f, 1.0f}}},
          .slot_cap = slot_cap,
          .output_terms = 48,
          .kv_dtype = kv_dtype};
}

std::vector<float> Repeated(const std::vector<int64_t>& tokens) {
  const std::vector<float> distinct = RandomRows(8, 9);
  std::vector<float> x;
  for (const int64_t token : tokens) {
    const std::vector<float> row = Rows(distinct, token, token + 1);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

class KeyDiff : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const std::string missing = WhyNoDevice(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }

  // The dictionary's bytes after tokens that are one chunk.
  static std::vector<std::byte> SlotsAfter(const std::vector<int64_t>& tokens, int64_t slot_cap,
                                           DType dtype = DType::kF32) {
    const auto n = static_cast<int64_t>(tokens.size());
    MixerInstance instance(KeyDiffCase(n, slot_cap, dtype), GetParam(), 1, static_cast<int>(n));
    MixerSession session = instance.NewSession();
    instance.Run(session, Repeated(tokens), {});
    EXPECT_TRUE(session.GuardsIntact());
    const std::vector<std::byte> bytes = session.bytes();
    return {bytes.begin() + static_cast<std::ptrdiff_t>(instance.where().PartOffset(0)),
            bytes.end()};
  }
};

// The mean key leans to the token that comes most often.
TEST_P(KeyDiff, WhatIsMostLikeTheMeanGoes) {
  EXPECT_EQ(SlotsAfter({0, 1, 2, 2, 2, 2, 3, 4}, 4), SlotsAfter({0, 1, 3, 4}, 4));
  EXPECT_NE(SlotsAfter({0, 1, 2, 2, 2, 2, 3, 4}, 4), SlotsAfter({0, 1, 2, 4}, 4));
}

TEST_P(KeyDiff, OfEqualTokensTheOldestStay) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    EXPECT_EQ(SlotsAfter({0, 1, 0}, 2, dtype), SlotsAfter({0, 1}, 2, dtype));
    EXPECT_EQ(SlotsAfter({0, 0, 1, 2, 0, 0}, 4, dtype), SlotsAfter({0, 0, 1, 2}, 4, dtype));
  }
}

// Keys and values of broken weights: as many tokens stay as should, the same however they came.
TEST_P(KeyDiff, NumbersThatAreNoneStayBounded) {
  std::vector<float> x = RandomRows(100, 7);
  x[40 * kModelDim] = std::numeric_limits<float>::quiet_NaN();
  x[50 * kModelDim] = std::numeric_limits<float>::infinity();
  MixerInstance instance(KeyDiffCase(16, 20), GetParam(), 1, 100);
  MixerSession whole = instance.NewSession(), split = instance.NewSession();
  instance.Run(whole, x, {});
  instance.Run(split, x, {7, 40, 41, 64, 99});
  EXPECT_TRUE(whole.GuardsIntact());
  EXPECT_EQ(whole.bytes(), split.bytes());
}

INSTANTIATE_TEST_SUITE_P(Devices, KeyDiff, ::testing::ValuesIn(TestDevices()),
                         [](const auto& info) { return DeviceName(info.param); });

}  // namespace
}  // namespace ovq::kernels::test
