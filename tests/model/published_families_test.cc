// Published hybrids: refusals, defaults of absent fields, and other spellings of fields.
// fixtures_test.cc tests their logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/attention.h"
#include "model/load_config.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

constexpr char kGranite[] = "published/granitemoehybrid-dense";
constexpr char kGraniteGroups[] = "published/granitemoehybrid-groups";
constexpr char kGraniteMoe[] = "published/granitemoehybrid-moe";
constexpr char kKimi[] = "published/kimi_linear-hub";
constexpr char kOlmo[] = "published/olmo_hybrid-nope";
constexpr char kCohere[] = "published/cohere2-sw";
constexpr char kQwen[] = "published/qwen3_5-tied";
constexpr char kQwenText[] = "published/qwen3_5-text";
constexpr char kMuse[] = "published/muse_glimmer-hub";

void ExpectMissing(const char* name, const std::string& tensor) {
  EditedModel model(name);
  ASSERT_EQ(model.tensors.erase(tensor), 1u) << tensor;
  model.ExpectError(absl::StatusCode::kNotFound, absl::StrCat("'", tensor, "' is missing"));
}

// Expects the same logits from a config with changes that are equivalent or have no effect.
void ExpectTheSame(const char* name, const nlohmann::json& changes) {
  const EditedModel before(name);
  EditedModel after = before.Copy();
  after.config.merge_patch(changes);
  EXPECT_EQ(ComputeLogits(after), ComputeLogits(before)) << changes;
}

TEST(Granite, RefusesWhatItDoesNotHave) {
  ExpectRefused(kGraniteMoe, {{"num_local_experts", 2000}},
                "num_local_experts: expected an integer in [0, 1024], got 2000");
  ExpectRefused(kGraniteMoe, {{"num_experts_per_tok", 9}},
                "num_experts_per_tok: expected an integer in [1, 8], got 9");
  ExpectRefused(kGranite, {{"hidden_act", "gelu"}}, "hidden_act: unknown value 'gelu'");
  ExpectRefused(kGranite, {{"position_embedding_type", "alibi"}},
                "position_embedding_type: unknown value 'alibi'");
  ExpectRefused(kGranite,
                {{"position_embedding_type", "rope"},
                 {"rope_parameters", {{"rope_type", "dynamic"}, {"rope_theta", 1e6}}}},
                "rope_parameters.rope_type: unknown value 'dynamic'; known: default");
  ExpectRefused(kGranite, {{"layer_types", {"mamba", "attention"}}},
                "layer_types: has 2 entries, num_hidden_layers is 6");
  ExpectRefused(kGraniteGroups, {{"layer_types", {"mamba", "moe", "mamba", "mamba", "mamba"}}},
                "layer_types[1]: unknown value 'moe'; known: mamba, attention");
  ExpectRefused(kGranite, {{"mamba_expand", 3}}, "mamba_expand: times hidden_size = 32 is 96");
  ExpectRefused(kGranite, {{"mamba_n_groups", 3}}, "mamba_n_groups: expected a divisor");
  ExpectRefused(kGranite, {{"attention_multiplier", -1}},
                "attention_multiplier: expected a number");
  ExpectRefused(kGranite, {{"num_key_value_heads", 3}}, "num_key_value_heads: expected a divisor");
}

TEST(Granite, NamesTensorsAsTheFileDoes) {
  ExpectMissing(kGranite, "model.layers.0.mamba.A_log");
  ExpectMissing(kGranite, "model.layers.2.self_attn.q_proj.weight");
  ExpectMissing(kGranite, "model.layers.1.shared_mlp.input_linear.weight");
  EditedModel shape(kGranite);
  shape.tensors["model.layers.1.shared_mlp.input_linear.weight"].first = {32, 112};
  shape.ExpectError(absl::StatusCode::kInvalidArgument,
                    "model.layers.1.shared_mlp.input_linear.weight: expected [112, 32], got");
  ExpectMissing(kGraniteMoe, "model.layers.0.block_sparse_moe.router.layer.weight");
  ExpectMissing(kGraniteMoe, "model.layers.3.block_sparse_moe.input_linear.weight");
  ExpectMissing(kGraniteMoe, "model.layers.1.block_sparse_moe.output_linear.weight");
  EditedModel without(kGranite);  // a file that says nothing has 8 experts
  without.config.erase("num_local_experts");
  without.config.erase("num_experts_per_tok");
  without.ExpectError(absl::StatusCode::kNotFound, "block_sparse_moe.router.layer.weight");
  EditedModel unread(kGraniteMoe);
  unread.config["num_local_experts"] = 0;
  unread.ExpectError(absl::StatusCode::kInvalidArgument, "block_sparse_moe");
}

TEST(Granite, FieldsMayBeWrittenInOtherWays) {
  ExpectTheSame(kGranite, {{"mamba_d_head", "auto"}});
  ExpectTheSame(kGranite, {{"mamba_d_head", nullptr}});
  ExpectTheSame(kGranite, {{"mamba_chunk_size", 64}, {"intermediate_size", 7}, {"a_field", {1}}});
  ExpectTheSame(kGranite, {{"time_step_limit", {0.0, {{"__float__", "Infinity"}}}}});
  EditedModel older(kGranite);
  const std::vector<float> expected = ComputeLogits(older);
  older.config["layers_block_type"] = older.config["layer_types"];
  older.config.erase("layer_types");
  EXPECT_EQ(ComputeLogits(older), expected);
  // A tied model whose writer also stored the head.
  older.tensors["lm_head.weight"] = older.tensors["model.embed_tokens.weight"];
  EXPECT_EQ(ComputeLogits(older), expected);
}

TEST(Granite, ExpertsMayBeWrittenInOtherWays) {
  ExpectTheSame(kGraniteMoe, {{"num_local_experts", nullptr}, {"num_experts_per_tok", nullptr}});
  ExpectTheSame(kGraniteMoe, {{"output_router_logits", true}, {"router_aux_loss_coef", 1}});
  ExpectTheSame(kGraniteMoe,
                {{"layer_types", {"linear_attention", "full_attention", "mamba", "mamba"}}});
}

// Each multiplier is close enough to its default to be overlooked.
TEST(Granite, EveryMultiplierCounts) {
  const std::vector<float> expected = ComputeLogits(EditedModel(kGranite));
  for (const nlohmann::json& change :
       {nlohmann::json{{"attention_multiplier", 0.3}}, nlohmann::json{{"embedding_multiplier", 1}},
        nlohmann::json{{"residual_multiplier", 1}}, nlohmann::json{{"logits_scaling", 1}},
        nlohmann::json{{"time_step_limit", {0.5, 0.6}}},
        nlohmann::json{{"position_embedding_type", "rope"}}}) {
    EditedModel model(kGranite);
    model.config.merge_patch(change);
    EXPECT_NE(ComputeLogits(model), expected) << change;
  }
}

// Two fields of ours, which their files have not, for texts longer than they were trained on.
TEST(PublishedFamilies, QueriesMayGrowWhereThereIsNoRope) {
  for (const char* name : {kGranite, kOlmo, kCohere, kKimi, kMuse, "published/nemotron_h-dense",
                           "published/smollm3-nope"}) {
    const EditedModel before(name);
    const auto logits = [&](double attn_scale, int64_t floor_scale) {
      EditedModel model = before.Copy();
      nlohmann::json& fields =
          model.config.contains("text_config") ? model.config["text_config"] : model.config;
      fields["attn_scale"] = attn_scale;
      fields["floor_scale"] = floor_scale;
      return ComputeLogits(model);
    };
    const std::vector<float> expected = ComputeLogits(before);
    EXPECT_EQ(logits(1, int64_t{1} << 40), expected) << name;
    EXPECT_NE(logits(1, 2), expected) << name;
    EditedModel wrong = before.Copy();
    (wrong.config.contains("text_config") ? wrong.config["text_config"]
                                          : wrong.config)["attn_scale"] = -1;
    wrong.ExpectError(absl::StatusCode::kInvalidArgument, "attn_scale: expected a number");
  }
  ExpectTheSame(kQwen, {{"attn_scale", 1}, {"floor_scale", 2}});  // RoPE in all layers
}

// Their code scales RoPE as Llama's does, over the channels that turn.
TEST(Hybrids, ScaleTheirRopes) {
  const auto rope = [](const EditedModel& model) {
    const TempFolder folder;
    model.Write(folder);
    const auto config = LoadConfig(folder.path());
    EXPECT_TRUE(config.ok()) << config.status();
    kernels::RopeSpec found;
    for (const LayerSpec& layer : config.ok() ? config->layers : std::vector<LayerSpec>()) {
      const kernels::AttentionConfig* const attention = layer.mixer->attention();
      if (attention != nullptr && attention->input.rope.dims > 0) found = attention->input.rope;
    }
    EXPECT_GT(found.dims, 0) << model.config;
    return found;
  };
  for (nlohmann::json scaling :
       {nlohmann::json{{"rope_type", "linear"}, {"factor", 4}},
        nlohmann::json{{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 8}},
        nlohmann::json{{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4}}}) {
    scaling["original_max_position_embeddings"] = 256;
    scaling["rope_theta"] = 7e4;
    for (const char* name : {kGranite, kOlmo, kCohere, kQwen, kQwenText}) {
      EditedModel model(name), llama("published/llama-smol");
      nlohmann::json& fields =
          model.config.contains("text_config") ? model.config["text_config"] : model.config;
      fields["position_embedding_type"] = name == kGranite ? "rope" : "rope_gptj";
      fields["rope_parameters"] = scaling;
      fields.erase("rope_scaling");
      const kernels::RopeSpec actual = rope(model);
      llama.config.update(
          {{"head_dim", actual.dims}, {"rope_theta", 7e4}, {"rope_scaling", scaling}});
      const kernels::RopeSpec expected = rope(llama);
      EXPECT_EQ(actual.theta, 7e4) << name;
      EXPECT_EQ(actual.factors, expected.factors) << name << scaling;
      EXPECT_EQ(actual.amplitude, expected.amplitude) << name << scaling;
      EXPECT_TRUE(std::ranges::any_of(actual.factors, [](double f) { return f < 1; })) << name;
    }
  }
}

TEST(OlmoHybrid, RefusesWhatItDoesNotHave) {
  ExpectRefused(kOlmo, {{"hidden_act", "gelu"}}, "hidden_act: unknown value 'gelu'");
  ExpectRefused(kOlmo, {{"linear_num_value_heads", 4}},
                "linear_num_value_heads: expected a multiple of num_heads = 3");
  ExpectRefused(kOlmo, {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}},
                "rope_scaling.type: unknown value 'dynamic'; known: default");
  ExpectRefused(kOlmo, {{"rope_parameters", {{"rope_theta", "far"}}}},
                "rope_parameters.rope_theta: expected a number, got \"far\"");
  ExpectRefused(kOlmo, {{"layer_types", {"mamba", "mamba", "mamba", "full_attention"}}},
                "layer_types[0]: unknown value 'mamba'; known: linear_attention, full_attention");
  EditedModel norm(kOlmo);
  norm.tensors["model.layers.3.input_layernorm.weight"] = norm.tensors["model.norm.weight"];
  norm.ExpectError(absl::StatusCode::kInvalidArgument, "'model.layers.3.input_layernorm.weight'");
  ExpectMissing(kOlmo, "model.layers.0.linear_attn.q_conv1d.weight");
  ExpectMissing(kOlmo, "model.layers.3.post_attention_layernorm.weight");
}

// A base of null is no RoPE, a missing one 10000.
TEST(OlmoHybrid, TellsANullThetaFromAMissingOne) {
  EditedModel none(kOlmo);
  const std::vector<float> without = ComputeLogits(none);
  none.config.erase("rope_parameters");
  none.config["rope_theta"] = nullptr;
  EXPECT_EQ(ComputeLogits(none), without);
  none.config["rope_parameters"] = nullptr;
  EXPECT_EQ(ComputeLogits(none), without);
  EditedModel missing(kOlmo), given(kOlmo);
  missing.config.erase("rope_parameters");
  given.config["rope_parameters"] = {{"rope_theta", 10000}};
  const std::vector<float> rotated = ComputeLogits(given);
  EXPECT_NE(rotated, without);
  EXPECT_EQ(ComputeLogits(missing), rotated);
  given.config["rope_parameters"] = nullptr;
  EXPECT_EQ(ComputeLogits(given), rotated);
  given.config["rope_theta"] = 500000;
  EXPECT_NE(ComputeLogits(given), rotated);
}

TEST(OlmoHybrid, TakesEverySpellingOfItsTensors) {
  EditedModel model(kOlmo);
  const std::vector<float> expected = ComputeLogits(model);
  const auto rename = [&](const std::string& from, const std::string& to) {
    auto tensor = model.tensors.extract("model.layers." + from);
    ASSERT_FALSE(tensor.empty()) << from;
    tensor.key() = "model.layers." + to;
    model.tensors.insert(std::move(tensor));
  };
  rename("0.input_layernorm.weight", "0.attention_layer_norm.weight");
  rename("1.post_attention_layernorm.weight", "1.feedforward_layer_norm.weight");
  rename("1.linear_attn.o_proj.weight", "1.linear_attn.out_proj.weight");
  rename("2.linear_attn.o_norm.weight", "2.linear_attn.norm.weight");
  auto& fused = model.tensors["model.layers.2.linear_attn.conv1d.weight"];
  fused.first = {2 * 36 + 72, 1, 4};
  for (const char* part : {"q", "k", "v"}) {
    const std::string name = absl::StrCat("model.layers.2.linear_attn.", part, "_conv1d.weight");
    fused.second += model.tensors.at(name).second;
    model.tensors.erase(name);
  }
  EXPECT_EQ(ComputeLogits(model), expected);
}

TEST(OlmoHybrid, FillsInWhatTheFileLeavesOut) {
  EditedModel model(kOlmo);
  const std::vector<float> expected = ComputeLogits(model);
  for (const char* field :
       {"layer_types", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim", "linear_allow_neg_eigval",
        "rms_norm_eps", "num_key_value_heads"}) {
    ASSERT_EQ(model.config.erase(field), 1u) << field;
  }
  EXPECT_EQ(ComputeLogits(model), expected);
}

TEST(Cohere2, RefusesWhatItDoesNotHave) {
  ExpectRefused(kCohere, {{"sliding_window_pattern", 5}}, "sliding_window_pattern: expected");
  ExpectRefused(kCohere, {{"layer_switch", 2}}, "layer_switch: expected");
  ExpectRefused(kCohere, {{"sliding_window", 1}}, "sliding_window: expected an integer in [2, ");
  ExpectRefused(kCohere, {{"use_embedding_sharing", false}}, "use_embedding_sharing: contradicts");
  ExpectRefused(kCohere, {{"use_qk_norm", true}}, "use_qk_norm: expected false, got true");
  ExpectRefused(kCohere, {{"use_parallel_block", false}}, "use_parallel_block: expected true");
  ExpectRefused(kCohere, {{"rotary_pct", 0.5}}, "rotary_pct: expected 1.0, got 0.5");
  ExpectRefused(kCohere, {{"position_embedding_type", "alibi"}}, "position_embedding_type: ");
  ExpectRefused(kCohere, {{"order_of_interleaved_layers", "global_first"}},
                "order_of_interleaved_layers: expected \"local_attn_first\"");
  EditedModel first_version(kCohere);
  first_version.config["model_type"] = "cohere";
  first_version.ExpectError(absl::StatusCode::kInvalidArgument,
                            "model_type: unknown value 'cohere'");
  EditedModel norm(kCohere);
  norm.tensors["model.layers.0.post_attention_layernorm.weight"] =
      norm.tensors["model.norm.weight"];
  norm.ExpectError(absl::StatusCode::kInvalidArgument, "post_attention_layernorm");
}

TEST(Cohere2, FieldsMayBeWrittenInOtherWays) {
  ExpectTheSame(kCohere, {{"rope_parameters", {{"rope_theta", 50000}}}, {"rope_theta", 7}});
  ExpectTheSame(kCohere, {{"sliding_window_pattern", 4}, {"layer_switch", nullptr}});
  EditedModel listed(kCohere);
  const std::vector<float> expected = ComputeLogits(listed);
  for (int i = 0; i < 8; ++i) {
    listed.config["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "sliding_attention");
  }
  listed.config["layer_switch"] = 3;  // ignored beside a list
  EXPECT_EQ(ComputeLogits(listed), expected);
}

TEST(Qwen35, RefusesWhatItDoesNotHave) {
  const auto refuse = [](const nlohmann::json& changes, const std::string& text) {
    ExpectRefused(kQwen, {{"text_config", changes}}, text);
  };
  refuse({{"attn_output_gate", false}}, "text_config.attn_output_gate: expected true");
  refuse({{"mlp_only_layers", {1}}}, "text_config.mlp_only_layers: expected none");
  refuse({{"hidden_act", "gelu"}}, "text_config.hidden_act: unknown value 'gelu'");
  refuse({{"rope_parameters", {{"rope_type", "dynamic"}}}}, "rope_parameters.rope_type: unknown");
  refuse({{"rope_parameters", {{"partial_rotary_factor", 2}}}},
         "rope_parameters.partial_rotary_factor: expected an integer in [1, 24], got 48");
  refuse({{"linear_num_value_heads", 3}},
         "text_config.linear_num_value_heads: expected a multiple of num_heads = 2, got 3");
  EditedModel model(kQwen);
  model.config["model_type"] = "qwen3_next";
  model.ExpectError(absl::StatusCode::kInvalidArgument, "model_type: unknown value 'qwen3_next'");
  ExpectMissing(kQwen, "model.language_model.layers.0.linear_attn.in_proj_qkv.weight");
  ExpectMissing(kQwenText, "model.layers.1.self_attn.q_proj.weight");
  EditedModel shape(kQwenText);
  shape.tensors["model.layers.1.self_attn.q_proj.weight"].first = {40, 192};
  shape.ExpectError(absl::StatusCode::kInvalidArgument, "q_proj.weight: expected [192, 40], got");
}

// The text model stored alone is the same model, under either prefix of its tensors.
TEST(Qwen35, TextMayStandAlone) {
  const EditedModel beside(kQwen);
  const std::vector<float> expected = ComputeLogits(beside);
  EditedModel alone(kQwen);
  alone.config = beside.config["text_config"];
  EXPECT_EQ(ComputeLogits(alone), expected);
  alone.tensors.clear();
  for (const auto& [name, tensor] : beside.tensors) {
    constexpr std::string_view kBegin = "model.language_model.";
    if (!name.starts_with(kBegin)) continue;  // tensors of drafting and vision
    alone.tensors["model." + name.substr(kBegin.size())] = tensor;
  }
  EXPECT_EQ(ComputeLogits(alone), expected);
  alone.config["tie_word_embeddings"] = false;
  alone.ExpectError(absl::StatusCode::kNotFound, "'lm_head.weight' is missing");
}

TEST(Qwen35, FieldsMayBeWrittenInOtherWays) {
  ExpectTheSame(kQwen, {{"tie_word_embeddings", false}});  // text_config says true
  ExpectTheSame(kQwen, {{"text_config", {{"tie_word_embeddings", nullptr}}}});
  ExpectTheSame(kQwen, {{"text_config",
                         {{"rope_parameters", {{"rope_theta", nullptr}}}, {"rope_theta", 1e7}}}});
  ExpectTheSame(kQwen, {{"text_config", {{"layer_types", nullptr}}}});
  ExpectTheSame(kQwenText, {{"rope_parameters", nullptr},
                            {"rope_scaling", {{"type", "default"}, {"rope_theta", 1e4}}},
                            {"partial_rotary_factor", 0.5}});
}

TEST(MuseGlimmer, RefusesWhatItDoesNotHave) {
  const auto refuse = [](const nlohmann::json& changes, const std::string& text) {
    ExpectRefused(kMuse, {{"text_config", changes}}, text);
  };
  refuse({{"hidden_activation", "gelu"}}, "text_config.hidden_activation: unknown value 'gelu'");
  refuse({{"tie_word_embeddings", true}}, "text_config.tie_word_embeddings: expected false");
  refuse({{"qk_scale_factor", 43.784}},
         "text_config.qk_scale_factor: expected a number in [0, 10]");
  refuse({{"sliding_window", 1}}, "text_config.sliding_window: expected an integer in [2, ");
  refuse({{"layer_rope_theta", {500000.0, 10000.0, 500000.0, 0}}},
         "layer_rope_theta[1]: expected 0 or rope_theta = 500000, got 10000");
  refuse({{"layer_rope_theta", {0, 0}}}, "text_config.layer_rope_theta: expected a list of 4");
  ExpectMissing(kMuse, "model.language_model.layers.0.pre_feedforward_layernorm.weight");
  ExpectMissing(kMuse, "model.language_model.layers.3.self_attn.gate_proj.weight");
}

TEST(MuseGlimmer, RotationIsIndependentOfWindows) {
  EditedModel model(kMuse);
  model.config["text_config"]["sliding_window"] = 2;
  const std::vector<float> expected = ComputeLogits(model);
  model.config["text_config"]["layer_rope_theta"] = {500000, 500000, 0, 500000};
  const std::vector<float> moved = ComputeLogits(model);
  EXPECT_NE(moved, expected);
  model.config["text_config"]["layer_types"] = {"sliding_attention", "sliding_attention",
                                                "full_attention", "sliding_attention"};
  EXPECT_NE(ComputeLogits(model), moved);
  ExpectTheSame(kMuse,
                {{"text_config", {{"layer_rope_theta", nullptr}, {"layer_types", nullptr}}}});
}

// Biases of every projection, which no fixture has: zeros change nothing, others do.
TEST(PublishedFamilies, AttentionMayHaveBiases) {
  struct Case {
    const char *name, *layer, *section;
    std::vector<std::pair<const char*, int>> widths;
  };
  for (const Case& c :
       {Case{kGranite, "model.layers.2.", "", {{"q", 32}, {"k", 16}, {"v", 16}, {"o", 32}}},
        Case{kQwenText, "model.layers.1.", "", {{"q", 192}, {"k", 32}, {"v", 32}, {"o", 40}}},
        Case{kMuse,
             "model.language_model.layers.0.",
             "text_config",
             {{"q", 64}, {"k", 16}, {"v", 16}, {"o", 48}}}}) {
    EditedModel model(c.name);
    const std::vector<float> expected = ComputeLogits(model);
    auto& config = *c.section == 0 ? model.config : model.config[c.section];
    config["attention_bias"] = true;
    const auto add = [&](const std::string& layer, float value) {
      for (const auto& [part, width] : c.widths) {
        const std::vector<float> bias(static_cast<size_t>(width), value);
        model.tensors[absl::StrCat(layer, "self_attn.", part, "_proj.bias")] = {
            {width},
            std::string(reinterpret_cast<const char*>(bias.data()), bias.size() * sizeof(float))};
      }
    };
    std::vector<std::string> layers;
    for (const auto& [name, tensor] : model.tensors) {
      constexpr std::string_view kEnd = "self_attn.k_proj.weight";
      if (name.ends_with(kEnd)) layers.push_back(name.substr(0, name.size() - kEnd.size()));
    }
    for (const std::string& layer : layers) add(layer, 0);
    EXPECT_EQ(ComputeLogits(model), expected) << c.name;
    add(c.layer, 0.5f);
    EXPECT_NE(ComputeLogits(model), expected) << c.name;
    model.tensors.erase(absl::StrCat(c.layer, "self_attn.o_proj.bias"));
    model.ExpectError(absl::StatusCode::kNotFound, "self_attn.o_proj.bias");
  }
}

TEST(KimiLinear, RefusesWhatItDoesNotHave) {
  ExpectRefused(kKimi, {{"hidden_act", "situ"}}, "hidden_act: unknown value 'situ'");
  ExpectRefused(kKimi, {{"q_lora_rank", 8}}, "q_lora_rank: expected null");
  ExpectRefused(kKimi, {{"mla_use_nope", false}}, "mla_use_nope: expected true");
  ExpectRefused(kKimi, {{"mla_use_nope", nullptr}}, "mla_use_nope: expected true");
  ExpectRefused(kKimi, {{"attn_res_block_size", 4}}, "attn_res_block_size: expected null");
  ExpectRefused(kKimi, {{"num_key_value_heads", 2}},
                "num_key_value_heads: expected num_attention_heads");
  ExpectRefused(kKimi, {{"kv_lora_rank", nullptr}}, "kv_lora_rank: expected an integer");
  ExpectRefused(kKimi, {{"linear_attn_config", {{"num_heads", nullptr}}}},
                "linear_attn_config.num_heads: expected an integer");
  ExpectRefused(kKimi, {{"linear_attn_config", {{"kda_layers", {1, 9}}}}},
                "linear_attn_config.kda_layers: expected layers in [1, 4], got 9");
  ExpectRefused(kKimi, {{"linear_attn_config", {{"kda_layers", nullptr}}}},
                "linear_attn_config.kda_layers: expected a list");
  ExpectRefused(kKimi, {{"num_experts_per_token", nullptr}},
                "num_experts_per_token: expected an integer");
  ExpectRefused(kKimi, {{"moe_layer_freq", 0}}, "moe_layer_freq: expected an integer in [1, ");
  ExpectRefused(kKimi, {{"moe_router_activation_func", "tanh"}},
                "moe_router_activation_func: unknown value 'tanh'");
}

TEST(KimiLinear, NamesTensorsAsTheFileDoes) {
  ExpectMissing(kKimi, "model.layers.0.self_attn.f_b_proj.weight");
  ExpectMissing(kKimi, "model.layers.2.self_attn.q_proj.weight");
  ExpectMissing(kKimi, "model.layers.2.self_attn.kv_b_proj.weight");
  ExpectMissing(kKimi, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight");
  ExpectMissing(kKimi, "model.layers.2.self_attn.o_proj.weight");
  ExpectMissing(kKimi, "model.layers.1.block_sparse_moe.experts.3.w3.weight");
  ExpectMissing(kKimi, "model.layers.1.block_sparse_moe.gate.e_score_correction_bias");
}

// Experts beside which there is none, in groups, and layers that have the dense feed-forward.
TEST(KimiLinear, ReadsItsFields) {
  EditedModel model(kKimi);
  model.config["num_shared_experts"] = nullptr;
  for (int i = 1; i < 4; ++i) {
    for (const char* part : {"gate", "up", "down"}) {
      model.tensors.erase(absl::StrCat("model.layers.", i, ".block_sparse_moe.shared_experts.",
                                       part, "_proj.weight"));
    }
  }
  const auto without = model.Load();
  ASSERT_TRUE(without.ok()) << without.status();
  const std::vector<float> logits = Logits(**without, *model.context);
  EXPECT_NE(logits, ComputeLogits(EditedModel(kKimi)));
  model.config["num_expert_group"] = 4;
  model.config["topk_group"] = 2;
  EXPECT_NE(ComputeLogits(model), logits);
}

}  // namespace
}  // namespace ovq::model::test
