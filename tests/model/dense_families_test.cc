// Published decoders of softmax attention throughout: refusals, defaults of absent fields, other
// spellings of fields and tensors, and scalings of RoPE. fixtures_test.cc tests their logits.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/attention.h"
#include "model/load_config.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

using nlohmann::json;

constexpr char kLlama[] = "published/llama-smol";
constexpr char kMistral[] = "published/mistral-window";
constexpr char kQwen2[] = "published/qwen2-tied";
constexpr char kQwen3[] = "published/qwen3-tied";
constexpr char kSmolLm3[] = "published/smollm3-nope";
constexpr char kGemma[] = "published/gemma3_text-1b";
constexpr char kGemmaScaled[] = "published/gemma3_text-scaled";
constexpr char kOlmo2[] = "published/olmo2-mha";
constexpr char kOlmo3[] = "published/olmo3-swa";
constexpr char kOlmo3Yarn[] = "published/olmo3-yarn";
constexpr char kPhi[] = "published/phi3-mini";
constexpr char kPhiLong[] = "published/phi3-longrope";

// The config of a golden model with changes, which must be valid.
ModelConfig Config(const char* name, const json& changes) {
  EditedModel model(name);
  if (!changes.is_null()) model.config.merge_patch(changes);
  const TempFolder folder;
  folder.Write("config.json", model.config.dump());
  auto config = LoadConfig(folder.path());
  Check(config.ok(), Message(config.status()).c_str());
  return *std::move(config);
}

const kernels::AttentionInput& Input(const ModelConfig& config, int layer) {
  return config.layers[layer].mixer->attention()->input;
}

// The tokens of a window that fills up within the sequence.
std::vector<float> LongLogits(const EditedModel& model) {
  const auto loaded = model.Load();
  Check(loaded.ok(), Message(loaded.status()).c_str());
  std::vector<int32_t> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 61);
  Session session(**loaded, *model.context, tokens, 64);
  session.Feed(40);
  return session.logits();
}

// Expects that changes of the config change the logits of a text, or that they do not.
void ExpectEffect(const char* name, const json& changes, bool has_effect) {
  const EditedModel before(name);
  EditedModel after = before.Copy();
  after.config.merge_patch(changes);
  EXPECT_EQ(LongLogits(after) != LongLogits(before), has_effect) << name << changes;
}

TEST(DenseFamilies, RefuseWhatTheyDoNotHave) {
  for (const char* name : {kLlama, kMistral, kQwen2, kQwen3, kSmolLm3, kOlmo2, kOlmo3, kPhi}) {
    ExpectRefused(name, {{"hidden_act", "gelu"}}, "hidden_act: unknown value 'gelu'; known: silu");
    ExpectRefused(name, {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}},
                  "rope_scaling.rope_type: unknown value 'dynamic'; known: default, ");
  }
  for (const char* name : {kLlama, kQwen3, kOlmo2, kGemma}) {
    ExpectRefused(name, {{"partial_rotary_factor", 0.5}},
                  "partial_rotary_factor: expected 1, got 0.5");
    ExpectRefused(name, {{"rope_parameters", {{"rope_type", "longrope"}}}}, "rope_parameters");
  }
  ExpectRefused(kQwen2, {{"use_mrope", true}}, "use_mrope: expected false, got true");
  for (const char* name : {kMistral, kPhi}) {
    ExpectRefused(name, {{"attention_bias", true}}, "attention_bias: expected false, got true");
    ExpectRefused(name, {{"sliding_window", 1}}, "sliding_window: expected an integer in [2, ");
  }
  ExpectRefused(kMistral,
                {{"layer_types",
                  {"full_attention", "sliding_attention", "full_attention", "full_attention"}}},
                "layer_types[1]: expected one type for all layers");
  ExpectRefused(kQwen3,
                {{"layer_types",
                  {"full_attention", "sliding_attention", "full_attention", "full_attention"}}},
                "layer_types[1]: unknown value 'sliding_attention'; known: full_attention");
  ExpectRefused(kSmolLm3, {{"no_rope_layers", {1, 1, 0}}},
                "no_rope_layers: expected one entry for each of the 5 layers");
  ExpectRefused(kSmolLm3, {{"no_rope_layers", {1, 1, 2, 0, 1}}},
                "no_rope_layers: expected integers in [0, 1], one is 2");
  ExpectRefused(kSmolLm3, {{"no_rope_layer_interval", 0}},
                "no_rope_layer_interval: expected an integer in [1, ");
  for (const char* type : {"qwen3_moe", "phi3small", "phimoe", "ministral", "olmo"}) {
    ExpectRefused(kQwen3, {{"model_type", type}},
                  absl::StrCat("model_type: unknown value '", type, "'; known: "));
  }
}

// Objects for types of layers belong to gemma3 and olmo3 alone.
TEST(DenseFamilies, RefuseRopesOfTypesOfLayers) {
  const json yarn = {{"rope_type", "yarn"},
                     {"rope_theta", 1e6},
                     {"factor", 4},
                     {"original_max_position_embeddings", 64}};
  for (const char* name : {kMistral, kQwen2, kQwen3, kSmolLm3, kOlmo2, kPhi}) {
    ExpectRefused(name,
                  {{"rope_scaling", nullptr}, {"rope_parameters", {{"full_attention", yarn}}}},
                  "rope_parameters.full_attention: expected no object");
  }
  ExpectRefused(kOlmo3,
                {{"rope_scaling", nullptr}, {"rope_parameters", {{"sliding_attention", yarn}}}},
                "rope_parameters.sliding_attention: expected no object");
}

// Transformers takes a default where the field is absent alone.
TEST(DenseFamilies, RefuseNoWindowForLayersThatSlide) {
  for (const char* name : {kGemma, kOlmo3, "published/cohere2-sw", "published/muse_glimmer-five"}) {
    EditedModel model(name);
    json& text = model.config.contains("text_config") ? model.config["text_config"] : model.config;
    text["sliding_window"] = nullptr;
    model.ExpectError(absl::StatusCode::kInvalidArgument,
                      "sliding_window: expected an integer, as layers slide, got null");
  }
  EditedModel model(kOlmo3);
  model.config["sliding_window"] = nullptr;
  for (json& type : model.config["layer_types"]) type = "full_attention";
  EXPECT_TRUE(model.Load().ok());
}

TEST(DenseFamilies, Gemma3RefusesWhatItDoesNotHave) {
  ExpectRefused(kGemma, {{"hidden_activation", "gelu"}},
                "hidden_activation: unknown value 'gelu'; known: gelu_pytorch_tanh");
  ExpectRefused(kGemma, {{"attn_logit_softcapping", 50.0}},
                "attn_logit_softcapping: expected null, got 50.0");
  ExpectRefused(kGemma, {{"use_bidirectional_attention", true}},
                "use_bidirectional_attention: expected false, got true");
  ExpectRefused(kGemma, {{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar: expected a number");
  ExpectRefused(kGemma, {{"sliding_window_pattern", 0}},
                "sliding_window_pattern: expected an integer in [1, ");
  ExpectRefused(kGemma, {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}}},
                "rope_scaling.rope_type: unknown value 'yarn'; known: default, linear");
  ExpectRefused(kGemma, {{"rope_parameters", {{"rope_theta", 1e6}}}},
                "rope_parameters: expected objects full_attention and sliding_attention");
  ExpectRefused(kGemma,
                {{"rope_parameters",
                  {{"full_attention", {{"rope_theta", 1e6}}},
                   {"sliding_attention", {{"rope_type", "linear"}, {"factor", 8}}}}}},
                "rope_parameters.sliding_attention.rope_type: unknown value 'linear'");
  ExpectRefused(kGemmaScaled,
                {{"rope_parameters",
                  {{"full_attention", json::object()}, {"sliding_attention", json::object()}}}},
                "rope_scaling: expected none beside rope_parameters");
}

// Gemma's golden model has the one activation and Llama's the other, by the same code.
TEST(DenseFamilies, ActivationsAreThoseOfTheFile) {
  using Kind = FeedForwardKind;
  const auto kind = [](const char* name, const json& changes) {
    return Config(name, changes).layers.back().feed_forward.kind;
  };
  for (const char* name : {kLlama, kMistral, kQwen2, kQwen3, kSmolLm3, kOlmo2, kOlmo3, kPhi}) {
    EXPECT_EQ(kind(name, {{"hidden_act", nullptr}}), Kind::kGatedSilu) << name;
    EXPECT_EQ(kind(name, {{"hidden_act", "swish"}}), Kind::kGatedSilu) << name;
    EXPECT_EQ(kind(name, {{"hidden_act", "gelu_pytorch_tanh"}}), Kind::kGatedGelu) << name;
  }
  EXPECT_EQ(kind(kGemma, {{"hidden_activation", nullptr}}), Kind::kGatedGelu);
  EXPECT_EQ(kind(kGemma, {{"hidden_activation", "silu"}}), Kind::kGatedSilu);
  ExpectEffect(kLlama, {{"hidden_act", "gelu_pytorch_tanh"}}, true);
  ExpectEffect(kPhi, {{"hidden_act", "gelu_pytorch_tanh"}}, true);
}

TEST(DenseFamilies, ScalingsOfRopeNameTheirFields) {
  const auto refuse = [](const json& scaling, const std::string& text) {
    ExpectRefused(kLlama, {{"max_position_embeddings", nullptr}, {"rope_scaling", scaling}},
                  "rope_scaling." + text);
  };
  refuse({{"type", "linear"}}, "factor: expected a number in [1, 1e+06], but it is missing");
  refuse({{"type", "linear"}, {"factor", 0.5}}, "factor: expected a number in [1, 1e+06], got 0.5");
  refuse({{"rope_type", "yarn"}, {"factor", 4}},
         "original_max_position_embeddings: expected an integer");
  refuse({{"rope_type", "yarn"},
          {"factor", 4},
          {"original_max_position_embeddings", 64},
          {"beta_fast", "far"}},
         "beta_fast: expected a number");
  refuse({{"rope_type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4},
          {"original_max_position_embeddings", 64}},
         "high_freq_factor: expected a number above low_freq_factor");
  ExpectRefused(kPhiLong, {{"rope_scaling", {{"short_factor", {1, 2}}}}},
                "rope_scaling.short_factor: expected a list of 6 numbers, got a list of 2");
  ExpectRefused(kPhiLong, {{"rope_scaling", {{"long_factor", nullptr}}}},
                "rope_scaling.long_factor: expected a list of numbers, but it is missing");
  ExpectRefused(kPhiLong, {{"rope_scaling", {{"short_mscale", 1.1}}}},
                "rope_scaling.short_mscale: expected none");
  ExpectRefused(kPhiLong, {{"partial_rotary_factor", 0}},
                "partial_rotary_factor: expected an integer in [1, 16], got 0");
}

// By hand, for three pairs and the base 1e5.
TEST(DenseFamilies, YarnFollowsItsFields) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}};
  const auto rope = [&] { return Input(Config(kLlama, {{"rope_scaling", yarn}}), 0).rope; };
  EXPECT_EQ(rope().factors, (std::vector<double>{1, 0.625, 0.25}));
  EXPECT_NEAR(rope().amplitude, 1.138629436, 1e-9);
  yarn["attention_factor"] = 1.5;
  EXPECT_EQ(rope().amplitude, 1.5);
  yarn["attention_factor"] = nullptr;
  yarn["mscale"] = 2, yarn["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(rope().amplitude, 1.194464876, 1e-9);
  yarn["truncate"] = false;
  EXPECT_NEAR(rope().factors[1], 0.5217935569, 1e-9);
  yarn = {{"rope_type", "yarn"}, {"factor", 4}};
  EXPECT_EQ(Input(Config(kLlama, {{"rope_scaling", yarn}, {"max_position_embeddings", 1024}}), 0)
                .rope.factors,
            (std::vector<double>{1, 0.625, 0.25}));
}

TEST(DenseFamilies, RopeMayBeWrittenInOtherWays) {
  const json llama3 = EditedModel("published/llama-scaled").config["rope_scaling"];
  ExpectEffect("published/llama-scaled", {{"rope_scaling", nullptr}, {"rope_parameters", llama3}},
               false);
  json with_theta = llama3;
  with_theta["rope_theta"] = 500000;
  ExpectEffect("published/llama-scaled",
               {{"rope_scaling", with_theta}, {"rope_theta", 7}, {"rope_parameters", {{"a", 1}}}},
               false);
  ExpectEffect("published/llama-scaled", {{"rope_scaling", nullptr}}, true);
  ExpectEffect("published/llama-scaled", {{"original_max_position_embeddings", 128}}, true);
  ExpectEffect(kLlama, {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, true);
  // Gemma's bases may lie in objects for each type of layers.
  ExpectEffect(
      kGemmaScaled,
      {{"rope_scaling", nullptr},
       {"rope_theta", nullptr},
       {"rope_local_base_freq", nullptr},
       {"rope_parameters",
        {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 50000}}},
         {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2000}}}}}},
      false);
  const json yarn = EditedModel(kOlmo3Yarn).config["rope_scaling"];
  json full = yarn;
  full["rope_theta"] = 2000;
  const json nested = {{"full_attention", full}, {"sliding_attention", {{"rope_theta", 2000}}}};
  ExpectEffect(kOlmo3Yarn, {{"rope_scaling", nullptr}, {"rope_parameters", nested}}, false);
  for (const json& sliding : {json{{"rope_theta", 7}}, json{{"rope_type", "yarn"}}, full}) {
    ExpectRefused(kOlmo3Yarn,
                  {{"rope_scaling", nullptr},
                   {"rope_parameters", {{"full_attention", full}, {"sliding_attention", sliding}}}},
                  "rope_parameters.sliding_attention: expected rope_type \"default\"");
  }
  ExpectEffect(kPhiLong, {{"rope_scaling", {{"type", "su"}}}}, false);
  ExpectEffect(kPhiLong, {{"rope_scaling", {{"type", "yarn"}}}}, false);
}

TEST(DenseFamilies, AnEmptyObjectOfRopeSaysNothing) {
  const json scaled = {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 7000}};
  const json plain = {{"rope_type", "default"}, {"rope_theta", 7000}};
  const json empty = json::object();
  const auto expect = [](const ModelConfig& config, const char* name) {
    const auto& rope = Input(config, config.n_layers - 1).rope;
    EXPECT_EQ(rope.theta, 7000) << name;
    ASSERT_FALSE(rope.factors.empty()) << name;
    EXPECT_EQ(rope.factors[0], 0.125) << name;
  };
  expect(Config(kLlama, {{"rope_scaling", empty}, {"rope_parameters", scaled}}), kLlama);
  expect(Config(kLlama, {{"rope_parameters", empty}, {"rope_scaling", scaled}}), kLlama);
  const json by_type = {{"full_attention", scaled}, {"sliding_attention", plain}};
  for (const char* name : {kOlmo3, kGemma}) {
    json layers = EditedModel(name).config["layer_types"];
    if (layers.is_array()) layers.back() = "full_attention";
    json changes = {{"rope_scaling", empty}, {"rope_parameters", by_type}, {"layer_types", layers}};
    if (layers.is_null()) changes["sliding_window_pattern"] = 1;
    expect(Config(name, changes), name);
  }
  EXPECT_EQ(Input(Config(kLlama, {{"rope_scaling", empty}, {"rope_theta", 7}}), 0).rope.theta, 7);
}

TEST(DenseFamilies, RopeOfOlmo3ByTypesOfLayersIsObjects) {
  const auto refuse = [](const char* ropes, const std::string& text) {
    EditedModel model(kOlmo3Yarn);
    model.config.erase("rope_scaling");
    model.config["rope_parameters"] = json::parse(ropes);
    model.ExpectError(absl::StatusCode::kInvalidArgument, "config.json: rope_parameters." + text);
  };
  const std::string full = "full_attention: expected an object, got ",
                    sliding = "sliding_attention: expected an object, got ",
                    type = "sliding_attention: expected rope_type \"default\"";
  refuse(R"({"full_attention": 5})", full + "5");
  refuse(R"({"full_attention": null})", full + "null");
  refuse(R"({"full_attention": "yarn", "sliding_attention": {}})", full + "\"yarn\"");
  refuse(R"({"full_attention": {}, "sliding_attention": null})", sliding + "null");
  refuse(R"({"full_attention": {}, "sliding_attention": [1]})", sliding + "[1]");
  refuse(R"({"full_attention": {}, "sliding_attention": {"rope_type": 5}})", type);
  refuse(R"({"full_attention": {}, "sliding_attention": {"rope_type": null}})", type);
  refuse(R"({"full_attention": {}, "sliding_attention": {"rope_theta": "a"}})", type);
  refuse(R"({"full_attention": {"rope_type": 5}, "sliding_attention": {}})",
         "full_attention.rope_type: ");
  refuse(R"({"full_attention": {"rope_theta": "a"}, "sliding_attention": {"rope_theta": "a"}})",
         "full_attention.rope_theta: expected a number, got \"a\"");
}

// Full layers of olmo3 alone are scaled.
TEST(DenseFamilies, OnlyFullLayersOfOlmo3AreScaled) {
  const ModelConfig config = Config(kOlmo3Yarn, {});
  EXPECT_TRUE(Input(config, 0).rope.factors.empty());
  EXPECT_EQ(Input(config, 0).rope.amplitude, 1);
  EXPECT_EQ(Input(config, 1).rope.factors.size(), 8u);
  EXPECT_GT(Input(config, 1).rope.amplitude, 1.2);
}

TEST(DenseFamilies, WindowsFollowTheirFields) {
  const auto types = [](const char* name, const json& changes) {
    std::string text;
    for (const std::string& type : Config(name, changes).layer_types()) text += type[0];
    return text;
  };
  EXPECT_EQ(types(kMistral, {}), "ssss");
  EXPECT_EQ(types("published/mistral-null", {}), "fff");
  EXPECT_EQ(types(kQwen2, {}), "ffff");
  EXPECT_EQ(types(kQwen2, {{"use_sliding_window", true}}), "ffss");
  EXPECT_EQ(
      types(kQwen2,
            {{"use_sliding_window", true},
             {"layer_types",
              {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}}),
      "sfsf");
  EXPECT_EQ(types(kSmolLm3,
                  {{"use_sliding_window", true}, {"sliding_window", 8}, {"layer_types", nullptr}}),
            "fffsf");
  EXPECT_EQ(types(kSmolLm3, {{"use_sliding_window", true}, {"layer_types", nullptr}}), "fffff");
  for (const char* name : {kQwen2, kQwen3}) {  // windows that none fills, in a list of layers
    EXPECT_EQ(
        types(name,
              {{"use_sliding_window", true},
               {"sliding_window", 4096},
               {"layer_types",
                {"full_attention", "full_attention", "sliding_attention", "sliding_attention"}}}),
        "ffff");
  }
  EXPECT_EQ(types(kGemma, {}), "sssssf");
  EXPECT_EQ(types(kGemma, {{"sliding_window_pattern", 2}}), "sfsfsf");
  EXPECT_EQ(types(kOlmo3, {{"layer_types", nullptr}}), "sssf");
  EXPECT_EQ(types(kPhi, {}), "ssss");
  EXPECT_EQ(types(kPhi, {{"sliding_window", nullptr}}), "ffff");
  EXPECT_EQ(types(kPhi, {{"max_position_embeddings", 33}}), "ffff");  // a window that none fills
  const json endless = {{"max_position_embeddings", UINT64_MAX}};
  EXPECT_EQ(types(kPhi, endless), "ssss");
  EXPECT_GT(Input(Config(kPhiLong, endless), 0).rope.amplitude, 3);
  EditedModel absent(kMistral);
  absent.config.erase("sliding_window");
  absent.config["max_position_embeddings"] = 32768;
  const TempFolder folder;
  folder.Write("config.json", absent.config.dump());
  const auto config = LoadConfig(folder.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].type, "sliding_attention");  // of 4096 tokens
}

TEST(DenseFamilies, SmolLm3TurnsTheLayersThatItLists) {
  const auto turns = [](const json& changes) {
    std::string text;
    const ModelConfig config = Config(kSmolLm3, changes);
    for (int i = 0; i < config.n_layers; ++i) text += Input(config, i).rope.dims == 0 ? 'n' : 'r';
    return text;
  };
  EXPECT_EQ(turns({}), "rrrnr");
  EXPECT_EQ(turns({{"no_rope_layers", {0, 1, 1, 1, 0}}}), "nrrrn");
  EXPECT_EQ(turns({{"no_rope_layers", nullptr}}), "rrrnr");
  EXPECT_EQ(turns({{"no_rope_layers", nullptr}, {"no_rope_layer_interval", 2}}), "rnrnr");
}

TEST(DenseFamilies, FillInWhatTheFileLeavesOut) {
  struct Case {
    const char* name;
    std::vector<const char*> fields;
  };
  for (const Case& c :
       {Case{kLlama, {"rope_scaling", "attention_bias", "mlp_bias", "hidden_act"}},
        Case{kMistral, {"rope_theta", "tie_word_embeddings"}},
        Case{kQwen2, {"use_sliding_window", "sliding_window", "rms_norm_eps", "use_mrope"}},
        Case{kQwen3, {"rms_norm_eps", "attention_bias", "max_window_layers"}},
        Case{kSmolLm3, {"no_rope_layers", "layer_types", "rms_norm_eps"}},
        Case{kGemma,
             {"rope_theta", "rope_local_base_freq", "sliding_window_pattern", "rms_norm_eps",
              "hidden_activation", "final_logit_softcapping"}},
        Case{kOlmo2, {"num_key_value_heads", "rope_scaling", "tie_word_embeddings"}},
        Case{kOlmo3, {"layer_types"}},
        Case{kPhi, {"num_key_value_heads", "rms_norm_eps", "rope_theta", "rope_scaling"}}}) {
    EditedModel model(c.name);
    const std::vector<float> expected = LongLogits(model);
    for (const char* field : c.fields) model.config.erase(field);
    EXPECT_EQ(LongLogits(model), expected) << c.name;
  }
}

// Each is close enough to its default to be overlooked.
TEST(DenseFamilies, EveryFieldCounts) {
  ExpectEffect(kGemma, {{"query_pre_attn_scalar", 17}}, true);
  ExpectEffect(kGemma, {{"final_logit_softcapping", 30}}, true);
  ExpectEffect(kGemma, {{"rope_local_base_freq", 11000}}, true);
  ExpectEffect(kGemma, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}, true);
  ExpectEffect(kQwen2, {{"use_sliding_window", true}}, true);
  ExpectEffect(kOlmo3, {{"sliding_window", 9}}, true);
  ExpectEffect(kPhiLong, {{"max_position_embeddings", 4096}}, true);
  ExpectEffect(kPhiLong, {{"original_max_position_embeddings", 65}}, true);
  ExpectEffect(kLlama, {{"pretraining_tp", 2}, {"rope_interleaved", true}}, false);
  ExpectEffect(kGemma, {{"cache_implementation", nullptr}, {"_sliding_window_pattern", 3}}, false);
}

// The head of a tied model that its writer stored as well, and RoPE's table of older files.
TEST(DenseFamilies, SkipWhatNobodyReads) {
  for (const char* name : {kLlama, kQwen3, kGemma}) {
    EditedModel model(name);
    const std::vector<float> expected = ComputeLogits(model);
    model.tensors["lm_head.weight"] = model.tensors["model.norm.weight"];
    model.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] =
        model.tensors["model.norm.weight"];
    EXPECT_EQ(ComputeLogits(model), expected) << name;
    model.tensors["model.layers.0.self_attn.sinks"] = model.tensors["model.norm.weight"];
    model.ExpectError(absl::StatusCode::kInvalidArgument, "'model.layers.0.self_attn.sinks'");
  }
  EditedModel norm(kOlmo2);
  norm.tensors["model.layers.0.input_layernorm.weight"] = norm.tensors["model.norm.weight"];
  norm.ExpectError(absl::StatusCode::kInvalidArgument, "'model.layers.0.input_layernorm.weight'");
}

// Adds .bias [width] to the tensors of these parts.
void AddBiases(EditedModel& model, const std::vector<const char*>& parts, float value) {
  const auto weights = model.tensors;
  for (const auto& [name, tensor] : weights) {
    for (const char* part : parts) {
      if (!name.ends_with(absl::StrCat(part, ".weight"))) continue;
      const std::vector<float> bias(tensor.first[0].get<size_t>(), value);
      model.tensors[name.substr(0, name.size() - 6) + "bias"] = {{bias.size()}, Bytes(bias)};
    }
  }
}

TEST(DenseFamilies, PartsMayHaveBiases) {
  const std::vector<const char*> of_attention = {"q_proj", "k_proj", "v_proj", "o_proj"},
                                 of_feed_forward = {"gate_proj", "up_proj", "down_proj"};
  for (const char* name : {kLlama, kSmolLm3, kQwen3, kGemma, kOlmo2}) {
    for (const char* field : {"attention_bias", "mlp_bias"}) {
      const bool is_attention = field[0] == 'a';
      if (!is_attention && name != kLlama && name != kSmolLm3) continue;
      const auto& parts = is_attention ? of_attention : of_feed_forward;
      EditedModel model(name);
      const std::vector<float> expected = ComputeLogits(model);
      model.config[field] = true;
      AddBiases(model, parts, 0);
      EXPECT_EQ(ComputeLogits(model), expected) << name << field;
      for (const char* part : parts) {
        EditedModel other = model.Copy();
        AddBiases(other, {part}, 0.5f);
        EXPECT_NE(ComputeLogits(other), expected) << name << part;
        std::erase_if(other.tensors, [part](const auto& tensor) {
          return tensor.first.ends_with(absl::StrCat(part, ".bias"));
        });
        other.ExpectError(absl::StatusCode::kNotFound, absl::StrCat(part, ".bias' is missing"));
      }
    }
  }
}

// These families' code has a number of its own for an absent field, but not for a null.
TEST(DenseFamilies, KeyHeadsThatAreNullAreAsManyAsQueryHeads) {
  for (const char* name : {kMistral, kQwen2, kQwen3, kSmolLm3}) {
    EditedModel model(name);
    model.config["num_key_value_heads"] = nullptr;
    const TempFolder folder;
    folder.Write("config.json", model.config.dump());
    const auto config = LoadConfig(folder.path());
    ASSERT_TRUE(config.ok()) << name << config.status();
    const kernels::AttentionShape& shape = config->layers[0].mixer->attention()->shape;
    EXPECT_EQ(shape.n_kv_heads, shape.n_heads) << name;
  }
}

// transformers ends an answer at the tokens of the whole model, and asks its text only without.
TEST(DenseFamilies, ALargerModelsTokensCountBeforeThoseOfItsText) {
  json text = EditedModel(kGemma).config;
  text["bos_token_id"] = 2;
  text["eos_token_id"] = 1;
  const auto load = [&text](const json& at_top) {
    json whole = {{"model_type", "gemma3"}, {"text_config", text}};
    whole.update(at_top);
    const TempFolder folder;
    folder.Write("config.json", whole.dump());
    auto config = LoadConfig(folder.path());
    Check(config.ok(), Message(config.status()).c_str());
    return *std::move(config);
  };
  const std::vector<int32_t> of_text = {1}, of_all = {1, 5};
  EXPECT_EQ(load({{"eos_token_id", {1, 5}}}).eos_token_ids, of_all);
  EXPECT_EQ(load({{"eos_token_id", nullptr}}).eos_token_ids, of_text);
  EXPECT_EQ(load({{"bos_token_id", 7}}).eos_token_ids, of_text);
  EXPECT_EQ(load({{"bos_token_id", 7}}).bos_token_id, 7);
  EXPECT_EQ(load({{"bos_token_id", nullptr}}).bos_token_id, 2);
}

// A larger model's folder: fields in text_config, other prefixes, tensors of pictures.
TEST(DenseFamilies, Gemma3MayLieInALargerModel) {
  const EditedModel alone(kGemma);
  const std::vector<float> expected = ComputeLogits(alone);
  for (const char* prefix : {"language_model.model.", "model.language_model.", "model."}) {
    EditedModel inside(kGemma);
    inside.config = {{"model_type", "gemma3"},
                     {"text_config", alone.config},
                     {"vision_config", {{"hidden_size", 7}}}};
    inside.tensors.clear();
    for (const auto& [name, tensor] : alone.tensors) {
      inside.tensors[absl::StrCat(prefix, name.substr(std::string("model.").size()))] = tensor;
    }
    for (const char* other : {"vision_tower.a", "model.vision_tower.b", "multi_modal_projector.c",
                              "language_model.lm_head.weight"}) {
      inside.tensors[other] = alone.tensors.at("model.norm.weight");
    }
    EXPECT_EQ(ComputeLogits(inside), expected) << prefix;
  }
}

// The embedding's factor is in the type of the weights: 34 in bfloat16 for sqrt(1152).
TEST(DenseFamilies, Gemma3ScalesItsEmbeddingInTheWeightsType) {
  const json wide = {{"hidden_size", 1152}};
  EXPECT_FLOAT_EQ(Config(kGemma, wide).embedding_scale, 33.9411255f);
  json narrow = wide;
  narrow["torch_dtype"] = "bfloat16";
  EXPECT_EQ(Config(kGemma, narrow).embedding_scale, 34);
}

TEST(DenseFamilies, Phi3NamesTensorsAsTheFileDoes) {
  for (const char* name : {"self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"}) {
    EditedModel model(kPhi);
    const std::string tensor = absl::StrCat("model.layers.1.", name);
    ASSERT_EQ(model.tensors.erase(tensor), 1u);
    model.ExpectError(absl::StatusCode::kNotFound, absl::StrCat("'", tensor, "' is missing"));
  }
}

}  // namespace
}  // namespace ovq::model::test
