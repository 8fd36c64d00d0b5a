#include "model/cache_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/mixers/common/dictionary.h"
#include "model/load_config.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Base(const Json& layer_types, const Json& ovq = nullptr) {
  Json json = {{"model_type", "ovq_hybrid"}, {"vocab_size", 300},
               {"hidden_size", 64},          {"num_hidden_layers", layer_types.size()},
               {"num_attention_heads", 4},   {"head_dim", 16},
               {"intermediate_size", 96},    {"layer_types", layer_types},
               {"sliding_window", 16}};
  if (!ovq.is_null()) json["ovq"] = ovq;
  return json;
}

absl::StatusOr<ModelConfig> Load(const Json& json, CachePolicy cache_policy) {
  const TempFolder folder;
  folder.Write("config.json", json.dump());
  return LoadConfig(folder.path(), cache_policy);
}

std::vector<std::string> Types(const Json& json, CachePolicy cache_policy) {
  const absl::StatusOr<ModelConfig> config = Load(json, cache_policy);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? config->layer_types() : std::vector<std::string>{};
}

std::vector<std::vector<double>> Shares(const Json& json, CachePolicy cache_policy) {
  const absl::StatusOr<ModelConfig> config = Load(json, cache_policy);
  EXPECT_TRUE(config.ok()) << config.status();
  std::vector<std::vector<double>> shares;
  for (const LayerSpec& layer : config->layers) shares.push_back(layer.slot_shares);
  return shares;
}

auto One(double share) { return ElementsAre(share); }

// Number of tokens after which the slots of a layer's growing part change.
int64_t Period(const Json& json, CachePolicy cache_policy) {
  const absl::StatusOr<ModelConfig> config = Load(json, cache_policy);
  const auto layout = PlanStateLayout(*config, kernels::DType::kF32, {}, kernels::Device::kCpu,
                                      kernels::kHostPageBytes);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout->growths()[0].period;
}

TEST(CachePolicies, AreFoundByTheirNames) {
  for (const CachePolicy& policy : CachePolicies()) {
    EXPECT_EQ(FindCachePolicy(policy.name), &policy);
    EXPECT_NE(std::string(policy.help), "") << policy.name;
    EXPECT_TRUE(policy.layer_type.empty() || kernels::FindMixer(policy.layer_type)) << policy.name;
  }
  EXPECT_EQ(FindCachePolicy("closest"), nullptr);
}

TEST(ApplyCachePolicy, LayersWithoutPositionsServeEveryCachePolicy) {
  const Json json =
      Base({"sliding_attention", "ovq_attention", "full_attention"}, {{"chunk_size", 32}});
  EXPECT_THAT(Types(json, Policy("model")),
              ElementsAre("sliding_attention", "ovq_attention", "full_attention"));
  EXPECT_THAT(Types(json, Policy("paper")),
              ElementsAre("sliding_attention", "ovq_attention", "ovq_attention"));
  EXPECT_THAT(Types(json, Policy("closest-pair")),
              ElementsAre("sliding_attention", "closest_pair_attention", "closest_pair_attention"));
  EXPECT_THAT(Types(json, Policy("keydiff")),
              ElementsAre("sliding_attention", "key_diff_attention", "key_diff_attention"));
  EXPECT_THAT(Types(json, Policy("exact")),
              ElementsAre("sliding_attention", "full_attention", "full_attention"));
}

TEST(ApplyCachePolicy, RotatedKeysAreBoundedWhereRequested) {
  Json json =
      Base({"sliding_attention", "full_attention", "full_attention"}, {{"shares", {1.5, 0.5}}});
  json["rope"] = "halves";
  EXPECT_THAT(Types(json, Policy("closest-pair-all")),
              ElementsAre("sliding_attention", "closest_pair_attention", "closest_pair_attention"));
  EXPECT_THAT(Types(json, Policy("keydiff-all")),
              ElementsAre("sliding_attention", "key_diff_attention", "key_diff_attention"));
  EXPECT_THAT(Shares(json, Policy("closest-pair-all")), ElementsAre(One(1), One(1.5), One(0.5)));
}

TEST(ApplyCachePolicy, AConfigChoosesItsUpdate) {
  const Json closest = Base({"ovq_attention"}, {{"update", "closest-pair"}});
  EXPECT_THAT(Types(closest, Policy("model")), ElementsAre("closest_pair_attention"));
  EXPECT_THAT(Types(closest, Policy("paper")), ElementsAre("ovq_attention"));
  EXPECT_THAT(Types(Base({"ovq_attention"}, {{"update", "paper"}}), Policy("model")),
              ElementsAre("ovq_attention"));
  EXPECT_THAT(Types(Base({"closest_pair_attention"}), Policy("model")),
              ElementsAre("closest_pair_attention"));
  EXPECT_THAT(Types(Base({"ovq_attention", "key_diff_attention"}, {{"update", "keydiff"}}),
                    Policy("model")),
              Each("key_diff_attention"));

  const auto unknown = Load(Base({"ovq_attention"}, {{"update", "nearest"}}), Policy("model"));
  EXPECT_THAT(Message(unknown.status()), HasSubstr("config.json: ovq.update: "));
  const auto both = Load(Base({"closest_pair_attention"}, {{"update", "paper"}}), Policy("model"));
  EXPECT_THAT(Message(both.status()),
              HasSubstr("ovq.update: expected closest-pair for closest_pair_attention, got paper"));
  const auto other =
      Load(Base({"key_diff_attention"}, {{"update", "closest-pair"}}), Policy("model"));
  EXPECT_THAT(Message(other.status()),
              HasSubstr("ovq.update: expected keydiff for key_diff_attention, got closest-pair"));
  const auto variant =
      Load(Base({"ovq_attention"}, {{"update", "keydiff"}, {"delta_rule", true}}), Policy("model"));
  EXPECT_THAT(Message(variant.status()),
              HasSubstr("ovq.delta_rule: expected false for tokens that KeyDiff evicts, got true"));
}

TEST(ApplyCachePolicy, AVarianceNeedsMeansOfUnitKeysWhoseCountsAreRead) {
  const auto error = [](const Json& layer_types, Json ovq, const char* policy,
                        const Json& model = Json::object()) {
    if (!ovq.contains("variance")) ovq["variance"] = 0.5;
    Json json = Base(layer_types, ovq);
    json.update(model);
    return Message(Load(json, Policy(policy)).status());
  };
  const Json ovq = {"ovq_attention"}, full = {"full_attention"};
  for (const char* policy : {"model", "paper", "closest-pair", "exact"}) {
    EXPECT_EQ(error(ovq, {{"delta_rule", false}}, policy), "") << policy;
    EXPECT_EQ(error(full, Json::object(), policy), "") << policy;
  }
  for (const Json& wrong : {Json(-0.5), Json(1001), Json("1"), Json(true)}) {
    for (const Json& types : {ovq, full}) {
      EXPECT_THAT(error(types, {{"variance", wrong}}, "model"),
                  HasSubstr("config.json: ovq.variance: expected a number in [0, 1000], got "));
    }
  }
  const std::string evicted =
      "ovq.variance: expected 0 for tokens that KeyDiff evicts, as no slot has several keys, got "
      "0.5";
  EXPECT_THAT(error(ovq, {{"update", "keydiff"}}, "model"), HasSubstr(evicted));
  EXPECT_THAT(error(full, Json::object(), "keydiff"), HasSubstr(evicted));
  EXPECT_THAT(error(ovq, {{"normalize_centroids", true}}, "model"),
              HasSubstr("ovq.variance: expected 0 with normalize_centroids, "));
  EXPECT_THAT(error(ovq, {{"counts_for_rates_only", true}}, "model"),
              HasSubstr("ovq.variance: expected 0 with counts_for_rates_only, "));
  for (const char* norm : {"layer", "rms", "rms_all_heads", "none"}) {
    EXPECT_THAT(error(ovq, Json::object(), "model", {{"qk_norm", norm}}),
                HasSubstr("ovq.variance: expected 0 where keys have no unit norm (qk_norm unit or "
                          "l2), got 0.5"));
  }
  EXPECT_EQ(error(ovq, Json::object(), "model", {{"qk_norm", "l2"}}), "");
}

TEST(ApplyCachePolicy, AVarianceInDistancesNeedsUnitKeys) {
  const auto error = [](const Json& weight, const char* policy, const char* norm) {
    Json json = Base({"ovq_attention"}, {{"merge_variance", weight}});
    json["qk_norm"] = norm;
    return Message(Load(json, Policy(policy)).status());
  };
  for (const char* policy : {"model", "paper", "closest-pair", "keydiff"}) {
    for (const char* norm : {"unit", "l2"}) EXPECT_EQ(error(1.5, policy, norm), "") << policy;
    for (const char* norm : {"layer", "rms", "rms_all_heads", "none"}) {
      EXPECT_THAT(error(0.5, policy, norm),
                  HasSubstr("config.json: ovq.merge_variance: expected 0 where keys have no unit "
                            "norm (qk_norm unit or l2), got 0.5"));
      EXPECT_EQ(error(0, policy, norm), "") << policy;
    }
  }
  for (const Json& wrong : {Json(-0.5), Json(1001), Json("1"), Json(true)}) {
    EXPECT_THAT(error(wrong, "model", "unit"),
                HasSubstr("config.json: ovq.merge_variance: expected a number in [0, 1000], got "));
  }
}

TEST(ApplyCachePolicy, LayersHaveTheirShareOfTheSlots) {
  const Json types = {"ovq_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(Shares(Base(types, {{"shares", {1.75, 0.25}}}), Policy("model")),
              ElementsAre(One(1.75), One(1), One(0.25)));
  EXPECT_THAT(Shares(Base(types, {{"shares", {1, 1}}}), Policy("closest-pair")), Each(One(1)));
  EXPECT_THAT(Shares(Base(types), Policy("paper")), Each(One(1)));
  const auto error = [&](const Json& shares) {
    return Message(Load(Base(types, {{"shares", shares}}), Policy("model")).status());
  };
  EXPECT_THAT(error({1.75}), HasSubstr("config.json: ovq.shares: expected a list of 2 numbers"));
  EXPECT_THAT(error("all"), HasSubstr("config.json: ovq.shares: expected a list of 2 numbers"));
  EXPECT_THAT(error({2.5, -0.5}), HasSubstr("config.json: ovq.shares: expected numbers in ["));
  EXPECT_THAT(error({0, 2}), HasSubstr("config.json: ovq.shares: expected numbers in ["));
  EXPECT_THAT(error({1.5, 1}),
              HasSubstr("config.json: ovq.shares: expected 2 numbers or lists whose mean is 1, got "
                        "one of 1.25"));
}

TEST(ApplyCachePolicy, RulesHaveSharesOfTheirOwn) {
  const std::vector<std::string> types = {"ovq_attention", "full_attention"};
  Json json = Base(types, {{"shares", {{"paper", {1.75, 0.25}}, {"closest-pair", {0.5, 1.5}}}}});
  EXPECT_THAT(Shares(json, Policy("model")), ElementsAre(One(1.75), One(0.25)));
  EXPECT_THAT(Shares(json, Policy("paper")), ElementsAre(One(1.75), One(0.25)));
  EXPECT_THAT(Shares(json, Policy("closest-pair")), ElementsAre(One(0.5), One(1.5)));
  EXPECT_THAT(Shares(json, Policy("closest-pair-all")), Each(One(1)));  // none of its own
  json["ovq"]["update"] = "closest-pair";
  EXPECT_EQ(Shares(json, Policy("model"))[0], std::vector<double>{0.5});

  const auto error = [&](const Json& shares) {
    return Message(Load(Base(types, {{"shares", shares}}), Policy("paper")).status());
  };
  EXPECT_THAT(error({{"exact", {1, 1}}}),
              HasSubstr("config.json: ovq.shares.exact: expected the name of a cache policy with "
                        "slots"));
  EXPECT_THAT(error({{"paper", "all"}}),
              HasSubstr("config.json: ovq.shares.paper: expected a list of numbers, or lists"));
  EXPECT_THAT(
      error({{"paper", {1, 2}}}),
      HasSubstr("config.json: ovq.shares.paper: expected 2 numbers or lists whose mean is 1"));
}

// The fields of a slot's rule as the first layer with slots has read them.
const kernels::DictionaryConfig& Slots(const ModelConfig& config) {
  return static_cast<const kernels::DictionaryConfig&>(*config.layers[0].mixer->attention());
}

TEST(ApplyCachePolicy, RulesHaveValuesOfTheirOwn) {
  const Json ovq = {{"recent_tokens", {{"closest-pair", 9}, {"keydiff", 5}}},
                    {"variance", {{"closest-pair", 1}}},
                    {"value_weight", {{"paper", 0}, {"closest-pair", 2}}},
                    {"merge_variance", {{"closest-pair", 1.5}}},
                    {"pinned_tokens", 3}};
  for (const char* const type : {"ovq_attention", "full_attention"}) {
    const auto loaded = [&](const char* policy) {
      absl::StatusOr<ModelConfig> config = Load(Base({type}, ovq), Policy(policy));
      EXPECT_TRUE(config.ok()) << config.status();
      return *std::move(config);
    };
    for (const auto& [policy, recent, weight, variance] : {std::tuple("paper", 0, 0.0F, 0.0F),
                                                           {"closest-pair", 9, 2.0F, 1.0F},
                                                           {"keydiff", 5, 0.5F, 0.0F},
                                                           {"keydiff-all", 0, 0.5F, 0.0F}}) {
      const ModelConfig config = loaded(policy);
      EXPECT_EQ(Slots(config).rule.recent_tokens, recent) << type << policy;
      EXPECT_EQ(Slots(config).rule.value_weight, weight) << type << policy;
      EXPECT_EQ(Slots(config).rule.pinned_tokens, 3) << type << policy;
      EXPECT_EQ(Slots(config).rule.merge_variance, variance * 1.5F) << type << policy;
      EXPECT_EQ(KeyVariance(config), variance) << type << policy;
    }
  }
  Json trained = Base({"ovq_attention"}, ovq);
  trained["ovq"]["update"] = "closest-pair";
  EXPECT_EQ(Slots(*Load(trained, Policy("model"))).rule.recent_tokens, 9);

  const auto error = [&](const Json& section) {
    return Message(Load(Base({"ovq_attention"}, section), Policy("paper")).status());
  };
  EXPECT_THAT(error({{"recent_tokens", {{"nobody", 1}}}}),
              HasSubstr("config.json: ovq.recent_tokens.nobody: expected the name of a cache "
                        "policy with slots"));
  EXPECT_THAT(error({{"variance", {{"keydiff", "much"}}}}),
              HasSubstr("config.json: ovq.variance.keydiff: expected a number"));
  EXPECT_THAT(error({{"recent_tokens", {{"paper", -1}}}}),
              HasSubstr("config.json: ovq.recent_tokens.paper: expected an integer in [0, "));
  EXPECT_THAT(error({{"chunk_size", {{"paper", 8}}}}),
              HasSubstr("config.json: ovq.chunk_size: an object is not expected here"));
}

TEST(ApplyCachePolicy, HeadsHaveTheirShareOfTheSlots) {
  const Json types = {"ovq_attention", "sliding_attention", "full_attention"};
  const auto with = [&](const Json& shares) {
    Json json = Base(types, {{"shares", shares}});
    json["num_key_value_heads"] = 2;
    return json;
  };
  const Json mixed = with({1.25, {0.25, 1.25}});
  for (CachePolicy cache_policy : {Policy("paper"), Policy("closest-pair")}) {
    EXPECT_THAT(Shares(mixed, cache_policy),
                ElementsAre(One(1.25), One(1), ElementsAre(0.25, 1.25)));
  }
  // A session is exact up to the smallest of all caps.
  const absl::StatusOr<ModelConfig> config = Load(
      [&] {
        Json json = mixed;
        json["layer_types"][0] = "sliding_attention";
        json["ovq"]["shares"] = Json::array({{0.5, 1.5}});
        return json;
      }(),
      Policy("closest-pair"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(ExactTokens(*config, 100), 50);

  const auto error = [&](const Json& shares) {
    return Message(Load(with(shares), Policy("model")).status());
  };
  EXPECT_THAT(
      error({1, {1, 0.5, 1.5}}),
      HasSubstr("config.json: ovq.shares: expected a number, or one for each of 2 key/value "
                "heads, as entry 1, got a list of 3"));
  EXPECT_THAT(error({1, Json::array()}),
              HasSubstr("config.json: ovq.shares: expected numbers or lists of numbers, one is an "
                        "empty list"));
  EXPECT_THAT(error({1, {-1, 3}}), HasSubstr("config.json: ovq.shares: expected numbers in ["));
  EXPECT_THAT(error({1, {1, 2}}), HasSubstr("ovq.shares: expected 2 numbers or lists whose mean is "
                                            "1, got one of 1.25"));
  EXPECT_THAT(error({1, {"half", 1}}), HasSubstr("config.json: ovq.shares: expected numbers in ["));
}

TEST(ApplyCachePolicy, FullAttentionIsReadInChunksOfABlock) {
  EXPECT_EQ(Period(Base({"full_attention"}), Policy("closest-pair")), kernels::kBlockSlots);
  EXPECT_EQ(Period(Base({"full_attention", "ovq_attention"}), Policy("closest-pair")), 128);
  EXPECT_EQ(Period(Base({"full_attention"}, {{"chunk_size", 32}}), Policy("closest-pair")), 32);
}

TEST(ApplyCachePolicy, WhereNoLayerCanItSaysSo) {
  Json rotated = Base({"sliding_attention", "full_attention"});
  rotated["rope"] = "halves";
  for (const Json& json : {Base({"sliding_attention"}), rotated}) {
    EXPECT_TRUE(Load(json, Policy("model")).ok());
    const absl::Status status = Load(json, Policy("closest-pair")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr("for --memory closest-pair, got no such layer"));
  }
  EXPECT_THAT(Message(Load(Base({"sliding_attention"}), Policy("closest-pair-all")).status()),
              HasSubstr("expected ovq_attention or full_attention for --memory closest-pair-all"));
}

TEST(ApplyCachePolicy, FullAttentionThroughSlotsIsExactUpToTheirNumber) {
  const Json json =
      Base({"ovq_attention", "full_attention", "full_attention"}, {{"shares", {1.5, 1, 0.5}}});
  const auto exact = [](const Json& of, CachePolicy cache_policy, int64_t cap) {
    return ExactTokens(*Load(of, cache_policy), cap);
  };
  EXPECT_EQ(exact(json, Policy("closest-pair"), 100), 50);
  EXPECT_EQ(exact(Base({"full_attention"}), Policy("closest-pair"), 100), 100);
  EXPECT_EQ(exact(json, Policy("keydiff"), 100), 50);
  EXPECT_EQ(exact(json, Policy("paper"), 100), 0);
  EXPECT_EQ(exact(json, Policy("model"), 100), std::nullopt);
  EXPECT_EQ(exact(Base({"ovq_attention"}), Policy("closest-pair"), 100), std::nullopt);
}

// A saved session is restored only into a model of the same fingerprint, which includes the policy.
TEST(ApplyCachePolicy, TheFingerprintKnowsIt) {
  const Json json = Base({"ovq_attention"});
  EXPECT_NE(Load(json, Policy("model"))->canonical, Load(json, Policy("closest-pair"))->canonical);
}

// A full-attention model read through closest pairs or KeyDiff gives the same logits, to the bit,
// while its tokens fit, and stays bounded after that.
TEST(ApplyCachePolicy, AShortSessionIsFullAttention) {
  EditedModel model("sw-full");
  model.config.erase("ovq");  // so that chunk lengths are those of layers trained without chunks
  ModelOptions options = kSmallSessions;
  const auto exact = model.Load(options);
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_TRUE((*exact)->layout().has_unbounded());
  const Golden golden = LoadGolden("sw-full");
  const std::vector<int32_t>& tokens = *std::ranges::max_element(
      golden.sequences, {}, [](const std::vector<int32_t>& s) { return s.size(); });
  const auto logits = [&](const LanguageModel& of, int64_t cap) {
    Session session(of, *model.context, tokens, cap);
    while (session.remaining() > 0) session.Feed(std::min<int64_t>(50, session.remaining()));
    return session.logits();
  };
  const auto n = static_cast<int64_t>(tokens.size());
  ASSERT_GT(n, 70);
  const std::vector<float> expected = logits(**exact, n);
  for (const char* policy : {"closest-pair", "keydiff"}) {
    options.cache_policy = Policy(policy);
    const auto bounded = model.Load(options);
    ASSERT_TRUE(bounded.ok()) << bounded.status();
    EXPECT_FALSE((*bounded)->layout().has_unbounded());
    EXPECT_EQ(logits(**bounded, n), expected);
    EXPECT_NE(logits(**bounded, 16), expected);
  }
}

TEST(ApplyCachePolicy, ModelsThatShareWeightsAreThoseLoadedAlone) {
  EditedModel model("sw-full");
  ModelOptions options;
  options.limits = {.max_slot_cap = 64, .max_unbounded_tokens = 4096};
  const CachePolicy policies[] = {Policy("closest-pair"), Policy("exact"), Policy("paper")};
  const TempFolder folder;
  model.Write(folder);
  const auto each = LanguageModel::LoadEach(folder.path(), options, policies, *model.context);
  ASSERT_TRUE(each.ok()) << each.status();
  const std::vector<int32_t> tokens = LoadGolden("sw-full").sequences.back();
  const auto logits = [&](const LanguageModel& of) {
    Session session(of, *model.context, tokens, /*slot_cap=*/16);
    while (session.remaining() > 0) session.Feed(std::min<int64_t>(50, session.remaining()));
    return session.logits();
  };
  std::vector<std::vector<float>> found;
  for (size_t i = 0; i < std::size(policies); ++i) {
    options.cache_policy = policies[i];
    const auto alone = model.Load(options);
    ASSERT_TRUE(alone.ok()) << alone.status();
    found.push_back(logits(*(*each)[i]));
    EXPECT_EQ(found.back(), logits(**alone)) << policies[i].name;
    EXPECT_EQ((*each)[i]->fingerprint(), (*alone)->fingerprint());
    EXPECT_EQ((*each)[i]->parameters(), (*alone)->parameters());
  }
  EXPECT_NE(found[0], found[1]);
  EXPECT_NE(found[0], found[2]);
}

// All update rules, on the devices that share no code: each layer keeps as many slots as its share.
TEST(ApplyCachePolicy, LayersOfUnequalSharesAgreeOnEveryDevice) {
  const Golden golden = LoadGolden("ovq-shares");
  const std::vector<int32_t>& tokens = golden.sequences.back();
  for (CachePolicy cache_policy : {Policy("paper"), Policy("closest-pair"), Policy("keydiff")}) {
    std::vector<float> logits[2];
    for (kernels::Device device : {kernels::Device::kReference, kernels::Device::kCpu}) {
      const auto context = BoundContext(device);
      ModelOptions options;
      options.limits = {.max_slot_cap = 64, .max_unbounded_tokens = 4096};
      options.cache_policy = cache_policy;
      const auto loaded = LanguageModel::Load(golden.folder, options, *context);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      Session session(**loaded, *context, tokens, /*slot_cap=*/24);
      while (session.remaining() > 0) session.Feed(std::min<int64_t>(7, session.remaining()));
      logits[device == kernels::Device::kCpu] = session.logits();
    }
    EXPECT_THAT(logits[0], ::testing::Pointwise(::testing::FloatNear(3e-5f), logits[1]))
        << cache_policy.name;
  }
}

}  // namespace
}  // namespace ovq::model::test
