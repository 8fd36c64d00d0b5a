// Published hybrids with growing layers read through closest pairs: the same logits, to the bit,
// while a session's tokens fit into its slots, and those that training/ computes after that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/cache_policy.h"
#include "model/load_config.h"
#include "model/weights.h"
#include "tests/model/edited_model.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

struct CachePolicyCase {
  const char* name;
  bool has_unrotated_keys;  // some growing layer has no RoPE
  bool has_rotated_keys_too = false;
  kernels::Device device = kernels::Device::kCpu;
};

// Limits far above the tests' lengths.
constexpr StateLimits kFarLimits = {.max_slot_cap = 4096, .max_unbounded_tokens = 4096};

class PublishedCachePolicy : public ::testing::TestWithParam<CachePolicyCase> {
 protected:
  void SetUp() override {
    const std::string missing = kernels::test::WhyNoDevice(GetParam().device);
    if (!missing.empty()) GTEST_SKIP() << missing;
    golden_ = LoadGolden(absl::StrCat("published/", GetParam().name));
    context_ = BoundContext(GetParam().device);
  }
  std::unique_ptr<LanguageModel> Load(CachePolicy cache_policy) const {
    ModelOptions options;
    options.cache_policy = cache_policy;
    options.limits = kFarLimits;
    auto loaded = LanguageModel::Load(golden_.folder, options, *context_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : nullptr;
  }
  std::vector<float> Logits(const LanguageModel& model, const std::vector<int32_t>& tokens,
                            int64_t slot_cap, int64_t step) const {
    Session session(model, *context_, tokens, slot_cap);
    while (session.remaining() > 0) session.Feed(std::min(step, session.remaining()));
    return session.logits();
  }
  // Tokens whose first blocks are read as slots.
  static std::vector<int32_t> Tokens(const LanguageModel& model) {
    std::mt19937 random(5);
    std::vector<int32_t> tokens(2 * kernels::kBlockSlots + 30);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config().vocab_size));
    }
    return tokens;
  }

  Golden golden_;
  std::unique_ptr<kernels::DeviceContext> context_;
};

TEST_P(PublishedCachePolicy, UpToItsSlotsIsExact) {
  const auto exact = Load(Policy("model"));
  ASSERT_NE(exact, nullptr);
  EXPECT_TRUE(exact->layout().has_unbounded());
  const std::vector<int32_t> tokens = Tokens(*exact);
  const auto n = static_cast<int64_t>(tokens.size());
  const std::vector<float> expected = Logits(*exact, tokens, n, 50);
  for (const CachePolicy cache_policy : {Policy("closest-pair"), Policy("closest-pair-all")}) {
    if (cache_policy == Policy("closest-pair") && !GetParam().has_unrotated_keys) continue;
    const auto bounded = Load(cache_policy);
    ASSERT_NE(bounded, nullptr);
    EXPECT_EQ(bounded->layout().has_unbounded(),
              GetParam().has_rotated_keys_too && cache_policy == Policy("closest-pair"))
        << cache_policy.name;
    for (const int64_t step : {50, 1}) {
      EXPECT_EQ(Logits(*bounded, tokens, n, step), expected) << cache_policy.name;
    }
    EXPECT_NE(Logits(*bounded, tokens, 16, 50), expected) << cache_policy.name;
  }
}

// Golden folders that have bounded.json.
class BoundedGolden : public PublishedCachePolicy {};

// Most tokens have merged; expected logits are those of training/ovq/hybrids.py in float64.
// Tolerance as in fixtures_test.cc; merges have margins (training/tests/make_bounded_golden.py).
TEST_P(BoundedGolden, BeyondItsSlotsIsWhatTrainingComputes) {
  const auto json = nlohmann::json::parse(ReadBytes(golden_.folder + "/bounded.json"));
  const auto expected = OpenSafetensors(golden_.folder + "/bounded.safetensors").value();
  const auto model = Load(Policy(json.at("memory").get<std::string>()));
  ASSERT_NE(model, nullptr);
  const int64_t slot_cap = json.at("max_centroids");
  for (size_t i = 0; i < json.at("sequences").size(); ++i) {
    const std::vector<int32_t> tokens = json.at("sequences")[i];
    const kernels::TensorView view = View(expected, absl::StrCat("logits.", i));
    const std::span<const float> logits(view.as<float>(), view.shape.elements());
    for (const int64_t step : {1, 23, 1000}) {
      EXPECT_THAT(Logits(*model, tokens, slot_cap, step),
                  Pointwise(FloatNear(3e-5f), std::vector<float>(logits.begin(), logits.end())))
          << i << " by " << step;
    }
  }
}

TEST_P(PublishedCachePolicy, KeysWithPositionsTakeAChoiceOfTheirOwn) {
  const auto plain = LoadConfig(golden_.folder, Policy("closest-pair"));
  EXPECT_EQ(plain.ok(), GetParam().has_unrotated_keys) << plain.status();
  if (!plain.ok()) {
    EXPECT_THAT(Message(plain.status()),
                HasSubstr("full_attention without RoPE for --memory closest-pair, got no such"));
  }
  const auto all = LoadConfig(golden_.folder, Policy("closest-pair-all"));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->layer_types(), ::testing::Contains("closest_pair_attention"));
  EXPECT_THAT(all->layer_types(), ::testing::Not(::testing::Contains("full_attention")));
}

// No published file has the section; whoever serves the model adds it for the slots.
TEST(PublishedRows, MayHaveASectionOfTheConfig) {
  EditedModel model("published/granitemoehybrid-dense");
  model.config["ovq"] = {{"max_centroids", 70}, {"shares", {1.5, 0.5}}};
  ModelOptions options;
  options.cache_policy = Policy("closest-pair");
  const auto loaded = model.Load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->layout().default_slot_cap(), 70);
  EXPECT_EQ((*loaded)->config().layers[2].slot_shares, std::vector<double>{1.5});
  EXPECT_EQ((*loaded)->config().layers[4].slot_shares, std::vector<double>{0.5});
  EXPECT_EQ(ExactTokens((*loaded)->config(), 70), 35);
  model.config["ovq"]["shars"] = 1;
  EXPECT_THAT(Message(model.Load(options).status()),
              HasSubstr("config.json: ovq.shars: unknown field"));
}

std::vector<CachePolicyCase> CachePolicyCases(const std::vector<CachePolicyCase>& folders) {
  std::vector<CachePolicyCase> cases;
  for (CachePolicyCase of : folders) {
    for (kernels::Device device : kernels::test::TestDevices()) {
      of.device = device;
      cases.push_back(of);
    }
  }
  return cases;
}

std::string CachePolicyCaseName(const ::testing::TestParamInfo<CachePolicyCase>& info) {
  std::string name = absl::StrCat(info.param.name, "_", kernels::DeviceName(info.param.device));
  std::ranges::replace_if(
      name, [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, PublishedCachePolicy,
                         ::testing::ValuesIn(CachePolicyCases({{"granitemoehybrid-dense", true},
                                                               {"granitemoehybrid-groups", true},
                                                               {"kimi_linear-hub", true},
                                                               {"granitemoehybrid-moe", true},
                                                               {"olmo_hybrid-nope", true},
                                                               {"olmo_hybrid-rope-gqa", false},
                                                               {"cohere2-sw", true},
                                                               {"cohere2-layer-types", true},
                                                               {"qwen3_5-tied", false},
                                                               {"qwen3_5-text", false},
                                                               {"qwen3_5_moe-hub", false},
                                                               {"nemotron_h-dense", true},
                                                               {"nemotron_h-moe", true},
                                                               {"muse_glimmer-hub", true},
                                                               {"muse_glimmer-five", true}})),
                         CachePolicyCaseName);
INSTANTIATE_TEST_SUITE_P(Dense, PublishedCachePolicy,
                         ::testing::ValuesIn(CachePolicyCases({{"llama-smol", false},
                                                               {"llama-scaled", false},
                                                               {"mistral-null", false},
                                                               {"qwen2-tied", false},
                                                               {"qwen3-tied", false},
                                                               {"qwen3-untied-bias", false},
                                                               {"smollm3-nope", true, true},
                                                               {"gemma3_text-1b", false},
                                                               {"gemma3_text-scaled", false},
                                                               {"olmo2-mha", false},
                                                               {"olmo3-swa", false},
                                                               {"olmo3-yarn", false},
                                                               {"phi3-longrope", false}})),
                         CachePolicyCaseName);
INSTANTIATE_TEST_SUITE_P(Families, BoundedGolden,
                         ::testing::ValuesIn(CachePolicyCases({{"granitemoehybrid-dense", true},
                                                               {"qwen3_5-text", false}})),
                         CachePolicyCaseName);

}  // namespace
}  // namespace ovq::model::test
