// Key-Value Means: the law of its rows, its errors, and cases beyond the contract test's.
#include "kernels/mixers/kvm/kvm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

KvmLaw Law(KvmBudget budget, int64_t chunk_len = 256) {
  return {.budget = budget,
          .chunk_len = chunk_len,
          .window_chunks = 2,
          .factor = 16,
          .exponent = 0.5,
          .saturation_n = 1024,
          .round_down = 1,
          .min_slots = 1,
          .max_chunks = 10000};
}

// The published code's growth: from chunk to chunk, by at most a chunk's tokens.
int64_t GrownSlots(const KvmLaw& law, int64_t chunks) {
  if (chunks < law.window_chunks) return 0;
  int64_t rows = law.chunk_len;
  for (int64_t c = law.window_chunks + 1; c <= chunks; ++c) {
    const auto context = static_cast<double>(c * law.chunk_len);
    double target = 0;
    if (law.budget == KvmBudget::kPowerLaw) target = law.factor * std::pow(context, law.exponent);
    if (law.budget == KvmBudget::kSaturation) {
      const auto n = static_cast<double>(law.saturation_n);
      target = n * context / (n + context);
    }
    auto whole = static_cast<int64_t>(std::floor(std::min(target, 1e15)));
    whole = std::max(whole / law.round_down * law.round_down, law.min_slots);
    whole = std::min(
        {whole, (c + 1 - law.window_chunks) * law.chunk_len, law.chunk_len * law.max_chunks});
    rows += std::min(std::max(whole, rows) - rows, law.chunk_len);
  }
  return rows;
}

TEST(KvmLaw, GivesTheRowsOfThePublishedConfigs) {
  KvmLaw sqrt16 = Law(KvmBudget::kPowerLaw);
  sqrt16.min_slots = 256;
  const std::pair<int64_t, int64_t> kSqrt16[] = {{512, 256},   {768, 443},   {1024, 512},
                                                 {1280, 572},  {2048, 724},  {4096, 1024},
                                                 {8192, 1448}, {32768, 2896}};
  for (const auto& [position, rows] : kSqrt16) EXPECT_EQ(sqrt16.SlotsAt(position / 256), rows);
  const KvmLaw saturating = Law(KvmBudget::kSaturation);
  const std::pair<int64_t, int64_t> kSaturating[] = {
      {768, 438}, {1024, 512}, {2048, 682}, {4096, 819}, {32768, 992}};
  for (const auto& [position, rows] : kSaturating) {
    EXPECT_EQ(saturating.SlotsAt(position / 256), rows);
  }
  KvmLaw fixed = Law(KvmBudget::kFixed);
  fixed.min_slots = 256;
  fixed.max_chunks = 1;
  EXPECT_EQ(fixed.SlotsAt(1), 0);
  for (int64_t chunks : {2, 3, 100, 1 << 30}) EXPECT_EQ(fixed.SlotsAt(chunks), 256);
}

TEST(KvmLaw, IsWhatGrowingFromChunkToChunkGives) {
  std::mt19937 random(5);
  const auto pick = [&](std::initializer_list<double> of) {
    return *(of.begin() + random() % of.size());
  };
  for (int trial = 0; trial < 300; ++trial) {
    KvmLaw law = Law(static_cast<KvmBudget>(random() % 3), int64_t{16} << random() % 5);
    law.window_chunks = 1 + random() % 4;
    law.factor = pick({0, 0.3, 1, 4, 16, 300});
    law.exponent = pick({0, 0.2, 0.5, 0.77, 1});
    law.saturation_n = static_cast<int64_t>(pick({1, 100, 1024, 100000}));
    law.round_down = int64_t{1} << random() % 5;
    law.min_slots = static_cast<int64_t>(pick({-1, 1, 100, 1000}));
    law.max_chunks = static_cast<int64_t>(pick({1, 3, 10000}));
    int64_t before = 0;
    for (int64_t chunks = 0; chunks < 300; ++chunks) {
      const int64_t rows = law.SlotsAt(chunks);
      ASSERT_EQ(rows, GrownSlots(law, chunks)) << law.AsGrowth(0).name << ", chunk " << chunks;
      ASSERT_GE(rows, before);
      ASSERT_LE(rows - before, law.chunk_len);
      before = rows;
    }
  }
}

TEST(KvmLaw, IsBoundedByTheSlotCap) {
  const KvmLaw law = Law(KvmBudget::kPowerLaw);
  const Growth growth = law.AsGrowth(4096);
  EXPECT_EQ(growth.live(511, 4096), 0);
  EXPECT_EQ(growth.live(512, 100), 100);
  EXPECT_EQ(growth.live(1023, 4096), 443);
  EXPECT_EQ(growth.live(32768, 1000), 1000);
  EXPECT_EQ(growth.live(int64_t{1} << 60, 4096), 4096);
  EXPECT_TRUE(growth == law.AsGrowth(10));
  KvmLaw other = law;
  other.factor = std::nextafter(law.factor, 17.0);
  EXPECT_FALSE(growth == other.AsGrowth(4096));
}

MixerCase SmallCase() {
  return {.type = "kvm_attention",
          .name = "small",
          .model = {{"num_attention_heads", 2}, {"head_dim", 16}},
          .section = {{"chunk_len", 16},
                      {"n_max_d_chunks", 100},
                      {"state_growth_factor", 4},
                      {"state_saturation_n", 120},
                      {"masked_dims", 8}},
          .weights = {{"self_attn.beta", {1.0f, 0.2f}},
                      {"self_attn.ln_s_k.weight", {1.0f, 0.2f}},
                      {"self_attn.front_head_temp", {1.0f, 0.2f}},
                      {"self_attn.state_head_temp", {1.0f, 0.2f}}},
          .slot_cap = 40,
          .output_terms = 32};
}

// The error of a case with a wrong section or wrong weights.
std::string ErrorText(const MixerCase& c, float weight = 1) {
  const auto context = MakeContext(Device::kCpu);
  const auto config = ReadFields(c.type, MakeFields(c.model), MakeFields(c.section, "kvm."));
  std::vector<float> values(1 << 16, weight);
  const WeightSource source = [&](const std::string&, const Shape& shape) {
    return TensorView{values.data(), DType::kF32, shape};
  };
  WeightReader weights(source, DType::kF32, *context);
  const auto made = FindMixer(c.type)->make({.layer = 0,
                                             .state = {.config = *config,
                                                       .d_model = kModelDim,
                                                       .kv_dtype = DType::kF32,
                                                       .device = context->device()},
                                             .weights = weights,
                                             .compute_dtype = DType::kF32,
                                             .context = *context});
  return made.ok() ? "" : std::string(made.status().message());
}

TEST(KvmConfig, NamesWhatIsWrong) {
  const auto error_with = [](const std::string& name, const Attrs::Value& value,
                             const std::string& budget = "power_law") {
    MixerCase c = SmallCase();
    c.section["state_budget_mode"] = budget;
    c.section[name] = value;
    return ErrorText(c);
  };
  EXPECT_EQ(error_with("sink_len", int64_t{15}), "");
  EXPECT_EQ(error_with("sink_len", int64_t{16}),
            "kvm.sink_len: expected an integer in [0, 15], got 16");
  EXPECT_EQ(error_with("state_round_down", int64_t{3}),
            "kvm.state_round_down: expected a divisor of chunk_len = 16, got 3");
  EXPECT_EQ(error_with("state_growth_exponent", 1.5),
            "kvm.state_growth_exponent: expected a number in [0, 1], got 1.5");
  EXPECT_EQ(error_with("state_saturation_n", std::monostate(), "kvm_saturation"),
            "kvm.state_saturation_n: expected a number for state_budget_mode kvm_saturation");
  EXPECT_EQ(error_with("state_budget_mode", std::string("none")),
            "kvm.state_budget_mode: unknown value 'none'; known: fixed, power_law, "
            "kvm_saturation");
  EXPECT_EQ(error_with("use_vlens", false, "fixed"), "");
  EXPECT_NE(error_with("use_vlens", false).find("kvm.use_vlens"), std::string::npos);
  MixerCase grouped = SmallCase();
  grouped.model["num_key_value_heads"] = 1;
  EXPECT_EQ(ErrorText(grouped),
            "num_key_value_heads: expected num_attention_heads = 2 for kvm_attention, got 1");
  EXPECT_EQ(ErrorText(SmallCase(), 0.0f),
            "self_attn.front_head_temp: expected numbers other than 0, head 0 has it");
}

class KvmFlags : public ::testing::TestWithParam<int> {};

// Every combination of its flags, each with a cap below a chunk and one above.
TEST_P(KvmFlags, AgreesWithTheReference) {
  static constexpr const char* kFlags[] = {"use_merge_gate_keys",
                                           "use_merge_gate_values",
                                           "use_head_temps",
                                           "apply_merge_gate_to_initial_state",
                                           "apply_merge_gate_to_appends",
                                           "values_round_to_bfloat16"};
  static constexpr const char* kBudgets[] = {"fixed", "power_law", "kvm_saturation"};
  constexpr int kTokens = 150;
  const std::vector<float> x = RandomRows(kTokens, 11);
  for (int budget = 0; budget < 4; ++budget) {
    MixerCase c = SmallCase();
    for (int i = 0; i < 6; ++i) c.section[kFlags[i]] = (GetParam() >> i) % 2 == 1;
    c.section["state_budget_mode"] = kBudgets[budget % 3];
    c.section["use_vlens"] = budget < 3;
    c.section["n_bswa_chunks"] = 1 + GetParam() % 3;
    c.section["sink_len"] = GetParam() % 5;
    for (int64_t cap : {3, 40}) {
      SCOPED_TRACE(absl::StrCat(kBudgets[budget % 3], " ", budget, ", cap ", cap));
      c.slot_cap = cap;
      MixerInstance reference(c, Device::kReference, 1, kTokens), cpu(c, Device::kCpu, 1, kTokens);
      MixerSession of_reference = reference.NewSession(), of_cpu = cpu.NewSession();
      const std::vector<float> expected = reference.Run(of_reference, x, {});
      // A value that bfloat16 rounds the other way is off by 2^-8 of itself.
      const double scale = 0.15 * std::sqrt(static_cast<double>(c.output_terms));
      AssertClose(cpu.Run(of_cpu, x, {}), expected,
                  scale * (GetParam() >> 5 ? 0x1p-8 : 64 * 0x1p-23), "y");
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, KvmFlags, ::testing::Range(0, 64));

// Key sums of a head's row, as a session holds them.
std::vector<float> KeySums(const MixerInstance& instance, const MixerSession& session, int row) {
  const MixerState& state = instance.mixer().state();
  const std::vector<std::byte> bytes = session.bytes();
  const auto* block = reinterpret_cast<const float*>(
      bytes.data() + state.fixed.bytes() +
      static_cast<size_t>(row / kBlockSlots) * state.block.bytes() + state.block.offset(3));
  std::vector<float> sums;
  for (int c = 0; c < 16; ++c) sums.push_back(block[c * kBlockSlots + row % kBlockSlots]);
  return sums;
}

TEST(Kvm, SinksStayAsTheyAreAndOtherRowsDoNot) {
  MixerCase c = SmallCase();
  c.section["sink_len"] = 2;
  c.section["state_min_len"] = 16;
  MixerInstance instance(c, Device::kCpu, 1, 400);
  MixerSession session = instance.NewSession();
  const std::vector<float> x = RandomRows(400, 3);
  instance.Run(session, Rows(x, 0, 32), {});
  const std::vector<float> sinks[] = {KeySums(instance, session, 0), KeySums(instance, session, 1)};
  const std::vector<float> other = KeySums(instance, session, 2);
  instance.Run(session, Rows(x, 32, 400), {}, /*start=*/32);
  EXPECT_EQ(KeySums(instance, session, 0), sinks[0]);
  EXPECT_EQ(KeySums(instance, session, 1), sinks[1]);
  EXPECT_NE(KeySums(instance, session, 2), other);
}

}  // namespace
}  // namespace ovq::kernels::test
