// Fields of gated_delta_net and mamba2 in config.json: the states that they give, and the values
// that are refused by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

absl::StatusOr<MixerState> ReadState(const std::string& type, const Fields& fields) {
  const Attrs section = MakeFields(fields, "section.");
  const auto config = ReadFields(type, Attrs(), section, /*d_model=*/768);
  absl::StatusOr<MixerState> state = FindMixer(type)->state(
      {.config = *config, .d_model = 768, .kv_dtype = DType::kBF16, .device = Device::kCpu});
  if (state.ok()) {
    EXPECT_TRUE(section.CheckAllRead().ok()) << section.CheckAllRead();
  }
  return state;
}

// Error message for `fields` with one of them changed, without the reader's name of the section.
std::string ErrorText(const std::string& type, Fields fields, const std::string& name,
                      Attrs::Value value) {
  fields[name] = std::move(value);
  const absl::StatusOr<MixerState> state = ReadState(type, fields);
  const std::string prefix = "section." + name + ": ";
  const std::string message(state.status().message());
  EXPECT_EQ(message.substr(0, prefix.size()), prefix);
  return message.substr(std::min(prefix.size(), message.size()));
}

const Fields kGdnFields = {
    {"num_heads", 3}, {"head_dim", 128}, {"value_head_dim", 256}, {"conv_size", 4}};
const Fields kMamba2Fields = {{"num_heads", 12},
                              {"state_size", 64},
                              {"expand", 1},
                              {"chunk_size", 256},
                              {"dt_min", 0.001},
                              {"dt_max", 0.1},
                              {"dt_init_floor", 0.0001},
                              {"A_init_range", std::vector<int64_t>{1, 16}},
                              {"conv_init", std::monostate()}};

// The OVQ paper's 77M shapes: 3 heads of 128 by 256 and 12 of 64 by 64, with three tokens of
// inputs.
TEST(RecurrentConfig, StatesOfOneSize) {
  const absl::StatusOr<MixerState> gdn = ReadState("gated_delta_net", kGdnFields);
  ASSERT_TRUE(gdn.ok()) << gdn.status();
  EXPECT_EQ(gdn->fixed.bytes(), 4 * (3 * 128 * 256 + 3 * (2 * 3 * 128 + 3 * 256)));
  EXPECT_EQ(gdn->span, 0);
  EXPECT_FALSE(gdn->growth.exists());
  const absl::StatusOr<MixerState> mamba2 = ReadState("mamba2", kMamba2Fields);
  ASSERT_TRUE(mamba2.ok()) << mamba2.status();
  EXPECT_EQ(mamba2->fixed.bytes(), 4 * (12 * 64 * 64 + 3 * (768 + 2 * 64)));
  EXPECT_EQ(mamba2->span, 0);
}

TEST(RecurrentConfig, GatedDeltaNetRefusesByName) {
  const auto error = [](const char* name, Attrs::Value value) {
    return ErrorText("gated_delta_net", kGdnFields, name, std::move(value));
  };
  EXPECT_EQ(error("num_v_heads", 4), "expected a multiple of num_heads = 3, got 4");
  EXPECT_EQ(error("num_heads", 0), "expected an integer in [1, 4096], got 0");
  EXPECT_EQ(error("head_dim", 513), "expected an integer in [1, 512], got 513");
  EXPECT_EQ(error("value_head_dim", std::monostate()),
            "expected an integer in [1, 4096], but it is missing");
  EXPECT_EQ(error("conv_size", 1), "expected an integer in [2, 64], got 1");
  EXPECT_EQ(error("use_gate", 1), "expected true or false, got 1");
  EXPECT_EQ(error("gate_activation", "tanh"), "unknown value 'tanh'; known: silu, sigmoid");
  EXPECT_EQ(error("gate_bias", true), "expected false: only a gate with a gate_rank has a bias");
  EXPECT_EQ(error("decay_lower_bound", -5.0),
            "expected 0: decays of heads, without a decay_rank, have none");
  EXPECT_EQ(error("decay_lower_bound", 5.0), "expected a number in [-10000, 0], got 5");
  Fields without = kGdnFields;
  without["use_short_conv"] = false;
  without.erase("conv_size");
  EXPECT_EQ(ReadState("gated_delta_net", without)->fixed.list().size(), 1u);
}

TEST(RecurrentConfig, Mamba2RefusesByName) {
  const auto error = [](const char* name, Attrs::Value value) {
    return ErrorText("mamba2", kMamba2Fields, name, std::move(value));
  };
  EXPECT_EQ(error("n_groups", 5), "expected a divisor of num_heads = 12, got 5");
  EXPECT_EQ(error("expand", 2), "times hidden_size = 768 is 1536, num_heads * head_dim is 768");
  EXPECT_EQ(error("state_size", 513), "expected an integer in [1, 512], got 513");
  EXPECT_EQ(error("conv_kernel", 1), "expected an integer in [2, 64], got 1");
  EXPECT_EQ(error("dt_limit", std::vector<double>{0.5, 0.25}), "expected a range, got [0.5, 0.25]");
  EXPECT_EQ(error("dt_limit", std::vector<double>{-0.5, 1}),
            "expected numbers in [0, 1e+09], one is -0.5");
  EXPECT_EQ(error("dt_limit", 1), "expected a list of 2 numbers, got 1");
}

}  // namespace
}  // namespace ovq::kernels::test
