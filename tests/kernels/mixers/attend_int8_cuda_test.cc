// Attention over int8 states on CUDA: bit for bit equal to attention over the same values in wider
// types, as the scales are powers of two.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/mixers/attend_configs.h"

namespace ovq::kernels {
namespace {

using cuda::Split;
using test::AttendConfig;
using test::Full;
using test::kBF16;
using test::kF32;
using test::kI8;
using test::Ovq;
using test::Sessions;
using test::Sliding;

// Dictionary slots whose key or value is all zeros, and one where it is no number.
constexpr int kZeroKey = 5, kZeroValue = 6, kBroken = 9;

struct OutputsAndProbes {
  std::vector<float> out, scores;
  std::vector<int32_t> slots;
};

class AttendInt8 : public ::testing::TestWithParam<AttendConfig> {
 protected:
  void SetUp() override {
    const std::string missing = test::WhyNoDevice(Device::kCuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    context_ = test::MakeContext(Device::kCuda);
  }

  // The outputs of some sessions, optionally with an edited dictionary slot.
  OutputsAndProbes Run(DType dtype, int batch_tokens, Split split, bool broken_key,
                       bool broken_value) {
    AttendConfig config = GetParam();
    config.dtype = dtype;
    Sessions sessions(config, *context_, /*end=*/300);
    sessions.Add(0, 70);
    sessions.Add(270, 21);
    sessions.Add(130, 1);
    sessions.Edit([&](std::byte* state) {
      if (config.n_slots == 0) return;
      Put(sessions, config, state, kZeroKey, true, 0);
      Put(sessions, config, state, kZeroValue, false, 0);
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      if (broken_key) Put(sessions, config, state, kBroken, true, kInfinity);
      if (broken_value) Put(sessions, config, state, kBroken, false, kInfinity);
    });
    sessions.Run(batch_tokens, split);
    OutputsAndProbes all;
    for (const Sessions::Session& session : sessions.list()) {
      all.out.insert(all.out.end(), session.out.begin(), session.out.end());
      std::vector<std::byte> state = sessions.Fetch(session);
      for (int h = 0; config.probe && h < config.n_kv_heads; ++h) {
        for (int i = 0; i < config.wave_span; ++i) {
          all.scores.push_back(
              *sessions.At<float>(state.data(), {sessions.blocks().best_score}, h, i));
          all.slots.push_back(
              *sessions.At<int32_t>(state.data(), {sessions.blocks().best_slot}, h, i));
        }
      }
    }
    return all;
  }

  // A row whose channels are 1, 2, ... but for the first, x; zeros if that is 0.
  void Put(const Sessions& sessions, const AttendConfig& config, std::byte* state, int slot,
           bool is_key, float x) {
    const int n = is_key ? config.head_dim : config.value_head_dim;
    for (int h = 0; h < config.n_kv_heads; ++h) {
      std::vector<float> row(static_cast<size_t>(n));
      for (size_t c = 0; x != 0 && c < row.size(); ++c) row[c] = static_cast<float>(c);
      row[0] = x;
      test::RoundRowFor(config, row.data(), n);
      const AttentionBlocks& blocks = sessions.blocks();
      void* to = sessions.At<void>(
          state, is_key ? blocks.dictionary_keys : blocks.dictionary_values, h, slot / kBlockSlots);
      if (is_key) {
        StoreKey(row.data(), n, config.dtype, to, slot % kBlockSlots);
      } else {
        StoreValue(row.data(), n, config.value_stride(), config.dtype, to, slot % kBlockSlots);
      }
    }
  }

  // Types whose arithmetic is that of the int8 rows.
  std::vector<DType> WideTypes() const {
    if (GetParam().tensor_cores()) return {DType::kBF16};
    if (GetParam().compute_dtype == DType::kF32) return {DType::kF32, DType::kBF16};
    return {DType::kF32};
  }

  std::unique_ptr<DeviceContext> context_;
};

TEST_P(AttendInt8, IsThatOfTheSameRowsInWiderTypes) {
  for (const Split split : {Split::kNever, Split::kAlways}) {
    for (const int batch_tokens : {1, 1000}) {
      const OutputsAndProbes narrow = Run(DType::kI8, batch_tokens, split, false, false);
      for (const float x : narrow.out) ASSERT_TRUE(std::isfinite(x));
      for (const DType dtype : WideTypes()) {
        const OutputsAndProbes wide = Run(dtype, batch_tokens, split, false, false);
        const std::string what =
            DTypeName(dtype) + std::string(", steps of ") + std::to_string(batch_tokens);
        test::AssertSameBits(narrow.out, wide.out, what);
        test::AssertSameBits(narrow.scores, wide.scores, what);
        EXPECT_EQ(narrow.slots, wide.slots) << what;
      }
    }
  }
}

class AttendInt8Dictionary : public AttendInt8 {};

// A row that is not finite gives NaN to every query that reads it, and no key is nearest to it, as
// in wider types.
TEST_P(AttendInt8Dictionary, RowsThatAreNotFiniteAreNoNumbers) {
  for (const bool is_key : {true, false}) {
    const OutputsAndProbes whole = Run(DType::kI8, 1000, Split::kNever, false, false),
                           narrow = Run(DType::kI8, 1000, Split::kNever, is_key, !is_key);
    size_t n_broken = 0;
    for (const float x : narrow.out) n_broken += std::isnan(x) ? 1 : 0;
    EXPECT_GT(n_broken, 0u);
    for (const DType dtype : WideTypes()) {
      const OutputsAndProbes wide = Run(dtype, 1000, Split::kNever, is_key, !is_key);
      EXPECT_EQ(narrow.slots, wide.slots);
      ASSERT_EQ(narrow.out.size(), wide.out.size());
      for (size_t i = 0; i < narrow.out.size(); ++i) {
        EXPECT_EQ(std::isnan(narrow.out[i]), std::isnan(wide.out[i])) << i;
      }
    }
    for (const int32_t slot : narrow.slots) EXPECT_TRUE(!is_key || slot != kBroken);
    EXPECT_TRUE(is_key || narrow.slots == whole.slots);
  }
}

// The config with values that are exact in int8.
AttendConfig InInt8(AttendConfig config) {
  config.rounds_to_int8 = true;
  return config;
}

const std::vector<AttendConfig> kInt8Float32 = {
    InInt8(Ovq("ovq", 2, 2, 20, 24, kI8, kF32, 48, 300)),
    InInt8(Ovq("ovq_group5", 5, 1, 33, 17, kI8, kF32, 40, 90)),
    InInt8(Ovq("ovq_wide", 1, 1, 300, 272, kI8, kBF16, 64, 70))};
// With groups of 16, the probe of a single token is alone in its tile.
const std::vector<AttendConfig> kInt8TensorCores = {
    InInt8(Ovq("ovq_group16", 16, 1, 32, 20, kI8, kBF16, 64, 280)),
    InInt8(Ovq("ovq", 2, 2, 64, 48, kI8, kBF16, 48, 330)),
    InInt8(Ovq("ovq_group5", 5, 1, 32, 64, kI8, kBF16, 128, 90)),
    InInt8(Ovq("ovq_wide", 1, 1, 128, 128, kI8, kBF16, 64, 280)),
    InInt8(Ovq("ovq_widest", 1, 1, 256, 240, kI8, kBF16, 32, 70))};

std::string NameInInt8(const ::testing::TestParamInfo<AttendConfig>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Float32, AttendInt8, ::testing::ValuesIn(kInt8Float32), NameInInt8);
INSTANTIATE_TEST_SUITE_P(Float32Recent, AttendInt8,
                         ::testing::Values(InInt8(Sliding("sliding", 2, 1, 20, 32, kI8, kF32, 100)),
                                           InInt8(Full("full", 2, 1, 32, 20, kI8, kF32))),
                         NameInInt8);
INSTANTIATE_TEST_SUITE_P(TensorCores, AttendInt8, ::testing::ValuesIn(kInt8TensorCores),
                         NameInInt8);
INSTANTIATE_TEST_SUITE_P(TensorCoresRecent, AttendInt8,
                         ::testing::Values(InInt8(Sliding("sliding", 2, 1, 64, 32, kI8, kBF16,
                                                          230)),
                                           InInt8(Full("full", 2, 1, 32, 96, kI8, kBF16))),
                         NameInInt8);
INSTANTIATE_TEST_SUITE_P(Float32, AttendInt8Dictionary, ::testing::ValuesIn(kInt8Float32),
                         NameInInt8);
INSTANTIATE_TEST_SUITE_P(TensorCores, AttendInt8Dictionary, ::testing::ValuesIn(kInt8TensorCores),
                         NameInInt8);

}  // namespace
}  // namespace ovq::kernels
