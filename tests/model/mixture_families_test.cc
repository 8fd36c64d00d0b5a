// Families with experts and models made of blocks: refusals, other spellings, and what a batch
// reads. fixtures_test.cc tests their logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/model/edited_model.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

using kernels::test::AssertSameBits;
using ::testing::ElementsAre;

constexpr char kGraniteExperts[] = "published/granitemoehybrid-moe";
constexpr char kQwenExperts[] = "published/qwen3_5_moe-hub";
constexpr char kNemotron[] = "published/nemotron_h-dense";
constexpr char kNemotronExperts[] = "published/nemotron_h-moe";

void ExpectSame(const EditedModel& after, const char* before) {
  AssertSameBits(ComputeLogits(after), ComputeLogits(EditedModel(before)), before);
}
void ExpectSame(const char* name, const nlohmann::json& changes) {
  EditedModel model(name);
  model.config.merge_patch(changes);
  ExpectSame(model, name);
}

// Replaces each stacked tensor NAME of experts by one tensor an expert, named BEGIN e END, of rows
// [part, part + 1) of `parts` equal parts of each expert's.
struct Unstacked {
  std::string name, begin;
  std::vector<std::string> ends;
};
void Unstack(EditedModel& model, const Unstacked& stacked) {
  const auto& [shape, bytes] = model.tensors.at(stacked.name);
  const size_t n = shape[0], n_parts = stacked.ends.size(), part = bytes.size() / n / n_parts;
  const int64_t rows = shape[1].get<int64_t>() / static_cast<int64_t>(n_parts);
  for (size_t i = 0; i < n * n_parts; ++i) {
    model.tensors[absl::StrCat(stacked.begin, i / n_parts, stacked.ends[i % n_parts])] = {
        {rows, shape[2]}, bytes.substr(i * part, part)};
  }
  model.tensors.erase(stacked.name);
}

// The other way round, of all layers whose names hold BEGIN.
void Stack(EditedModel& model, const std::string& layer, const std::string& leaf) {
  std::string all;
  nlohmann::json shape;
  int n = 0;
  for (;; ++n) {
    const auto at = model.tensors.find(absl::StrCat(layer, "experts.", n, ".", leaf, ".weight"));
    if (at == model.tensors.end()) break;
    shape = {n + 1, at->second.first[0], at->second.first[1]};
    all += at->second.second;
    model.tensors.erase(at);
  }
  model.tensors[layer + "experts." + leaf] = {shape, all};
}

void Zero(EditedModel& model, const std::string& name) {
  std::string& bytes = model.tensors.at(name).second;
  bytes.assign(bytes.size(), '\0');
}

// Renumbers blocks and leaves out those of `gone`.
void RemoveBlock(EditedModel& model, int gone) {
  std::map<std::string, std::pair<nlohmann::json, std::string>> tensors;
  for (const auto& [name, tensor] : model.tensors) {
    const std::string begin = "backbone.layers.";
    if (!name.starts_with(begin)) {
      tensors[name] = tensor;
      continue;
    }
    const int block = std::stoi(name.substr(begin.size()));
    if (block == gone) continue;
    const std::string leaf = name.substr(name.find('.', begin.size()));
    tensors[absl::StrCat(begin, block - (block > gone ? 1 : 0), leaf)] = tensor;
  }
  model.tensors = std::move(tensors);
  std::string blocks = model.config["hybrid_override_pattern"];
  model.config["hybrid_override_pattern"] = blocks.erase(static_cast<size_t>(gone), 1);
}

TEST(Qwen35Experts, RefusesWhatItDoesNotHave) {
  const auto refuse = [](const nlohmann::json& changes, const std::string& text) {
    ExpectRefused(kQwenExperts, {{"text_config", changes}}, "text_config." + text);
  };
  refuse({{"norm_topk_prob", false}}, "norm_topk_prob: expected true");
  refuse({{"mlp_only_layers", {1}}}, "mlp_only_layers: expected none");
  refuse({{"decoder_sparse_step", 2}}, "decoder_sparse_step: expected an integer in [1, 1], got 2");
  refuse({{"num_experts", 0}}, "num_experts: expected an integer in [1, 1024], got 0");
  refuse({{"num_experts_per_tok", 7}}, "num_experts_per_tok: expected an integer in [1, 6], got 7");
  refuse({{"moe_intermediate_size", 0}}, "moe_intermediate_size: expected an integer in [1, ");
  refuse({{"layer_types", nullptr}, {"full_attention_interval", 0}},
         "full_attention_interval: expected an integer in [1, ");
  refuse({{"hidden_act", "gelu"}}, "hidden_act: unknown value 'gelu'");
  for (const char* leaf : {"mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj",
                           "mlp.shared_expert.up_proj.weight", "mlp.shared_expert_gate.weight"}) {
    EditedModel model(kQwenExperts);
    const std::string tensor = absl::StrCat("model.language_model.layers.2.", leaf);
    ASSERT_EQ(model.tensors.erase(tensor), 1u) << tensor;
    model.ExpectError(absl::StatusCode::kNotFound, absl::StrCat("'", tensor, "' is missing"));
  }
  EditedModel shape(kQwenExperts);
  shape.tensors["model.language_model.layers.0.mlp.experts.down_proj"].first = {6, 16, 40};
  shape.ExpectError(absl::StatusCode::kInvalidArgument, "expected [6, 40, 16], got [6, 16, 40]");
}

TEST(Qwen35Experts, MayBeOneTensorEach) {
  EditedModel model(kQwenExperts);
  for (int i = 0; i < 4; ++i) {
    const std::string experts = absl::StrCat("model.language_model.layers.", i, ".mlp.experts.");
    Unstack(model, {experts + "gate_up_proj", experts, {".gate_proj.weight", ".up_proj.weight"}});
    Unstack(model, {experts + "down_proj", experts, {".down_proj.weight"}});
  }
  ExpectSame(model, kQwenExperts);
}

TEST(Qwen35Experts, TextMayStandAlone) {
  EditedModel alone(kQwenExperts);
  alone.config = nlohmann::json(alone.config["text_config"]);
  ExpectSame(alone, kQwenExperts);
  const auto beside = std::exchange(alone.tensors, {});
  for (const auto& [name, tensor] : beside) {
    constexpr std::string_view kBegin = "model.language_model.";
    const bool is_text = name.starts_with(kBegin);
    if (is_text) alone.tensors["model." + name.substr(kBegin.size())] = tensor;
    if (name == "lm_head.weight") alone.tensors[name] = tensor;
  }
  ExpectSame(alone, kQwenExperts);
}

TEST(NemotronH, RefusesWhatItDoesNotHave) {
  ExpectRefused(kNemotron, {{"hybrid_override_pattern", "M-X"}},
                "hybrid_override_pattern: expected the letters M, *, - and E, got 'X' at 2");
  ExpectRefused(kNemotron, {{"hybrid_override_pattern", ""}},
                "hybrid_override_pattern: expected 1 to 4096 blocks, got 0");
  ExpectRefused(kNemotron, {{"layers_block_type", {"mamba", "gru"}}},
                "layers_block_type[1]: unknown value 'gru'; known: mamba, attention, mlp, moe");
  ExpectRefused(kNemotron, {{"mlp_hidden_act", "silu"}}, "mlp_hidden_act: unknown value 'silu'");
  EditedModel bias(kNemotron);
  bias.config["mlp_bias"] = true;
  bias.ExpectError(absl::StatusCode::kNotFound,
                   "'backbone.layers.1.mixer.up_proj.bias' is missing");
  ExpectRefused(kNemotron, {{"n_groups", 3}},
                "n_groups: expected a divisor of num_heads = 8, got 3");
  ExpectRefused(kNemotronExperts, {{"n_group", 3}},
                "n_group: expected a divisor of the 8 experts, got 3");
  ExpectRefused(kNemotronExperts, {{"topk_group", 2}},
                "topk_group: expected an integer in [1, 1], got 2");
  ExpectRefused(kNemotronExperts, {{"n_group", 8}},
                "topk_group: expected groups that have 2 experts, got 1 of 1");
  ExpectRefused(kNemotronExperts, {{"num_experts_per_tok", 9}},
                "num_experts_per_tok: expected an integer in [1, 8], got 9");
  ExpectRefused(kNemotronExperts, {{"routed_scaling_factor", -1}},
                "routed_scaling_factor: expected a");
  EditedModel head(kNemotron);  // no head is tied, whatever the file says
  head.config["tie_word_embeddings"] = true;
  head.tensors.erase("lm_head.weight");
  head.ExpectError(absl::StatusCode::kNotFound, "'lm_head.weight' is missing");
  for (const char* leaf :
       {"1.norm.weight", "4.mixer.gate.weight", "5.mixer.A_log",
        "4.mixer.gate.e_score_correction_bias", "3.mixer.q_proj.weight",
        "1.mixer.shared_experts.up_proj.weight", "4.mixer.experts.7.down_proj.weight"}) {
    EditedModel model(kNemotronExperts);
    const std::string tensor = absl::StrCat("backbone.layers.", leaf);
    ASSERT_EQ(model.tensors.erase(tensor), 1u) << tensor;
    model.ExpectError(absl::StatusCode::kNotFound, absl::StrCat("'", tensor, "' is missing"));
  }
}

TEST(NemotronH, MayBeWrittenInOtherWays) {
  ExpectSame(kNemotron, {{"num_hidden_layers", 52}, {"expand", 7}, {"attention_bias", true}});
  ExpectSame(kNemotron,
             {{"layers_block_type",
               {"mamba", "mlp", "linear_attention", "full_attention", "mlp", "mamba", "mlp"}},
              {"hybrid_override_pattern", "MMMM"}});
  ExpectSame(kNemotron, {{"n_groups", nullptr}, {"mamba_n_groups", 4}, {"norm_eps", 1}});
  ExpectSame(kNemotronExperts, {{"n_group", 4}, {"topk_group", 4}});
  EditedModel model(kNemotronExperts);
  for (const char* layer : {"backbone.layers.1.mixer.", "backbone.layers.4.mixer."}) {
    Stack(model, layer, "up_proj");
    Stack(model, layer, "down_proj");
  }
  ExpectSame(model, kNemotronExperts);
  const auto tensors = std::exchange(model.tensors, {});
  for (const auto& [name, tensor] : tensors) {
    constexpr std::string_view kBegin = "backbone.";
    const bool is_body = name.starts_with(kBegin);
    model.tensors[is_body ? "model." + name.substr(kBegin.size()) : name] = tensor;
  }
  ExpectSame(model, kNemotronExperts);
}

TEST(NemotronH, TimeStepsHaveTheLimitsOfTheFile) {
  const std::vector<float> expected = ComputeLogits(EditedModel(kNemotron));
  for (const char* field : {"time_step_limit", "mamba_dt_limit"}) {
    EditedModel model(kNemotron);
    model.config.erase("time_step_limit");
    EXPECT_EQ(ComputeLogits(model), expected);
    model.config[field] = {0.5, 0.6};
    EXPECT_NE(ComputeLogits(model), expected) << field;
  }
  ExpectRefused(kNemotron, {{"time_step_limit", {0.5}}}, "time_step_limit: expected a list of 2");
}

// A mixer that gives nothing, and none, are the same; so are feed-forwards.
TEST(NemotronH, BlocksMayComeInAnyOrder) {
  EditedModel silent(kNemotron);  // M-M*-M-
  Zero(silent, "backbone.layers.0.mixer.out_proj.weight");
  Zero(silent, "backbone.layers.3.mixer.o_proj.weight");
  Zero(silent, "backbone.layers.6.mixer.down_proj.weight");
  EditedModel without = silent.Copy();
  RemoveBlock(without, 6);
  RemoveBlock(without, 3);
  RemoveBlock(without, 0);
  ASSERT_EQ(without.config["hybrid_override_pattern"], "-M-M");
  AssertSameBits(ComputeLogits(without), ComputeLogits(silent), "-M-M");
  RemoveBlock(without, 1);
  const auto loaded = without.Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->config().layer_types(), ElementsAre("none", "none", "mamba2"));
  const std::vector<float> logits = Logits(**loaded, *without.context);
  EXPECT_TRUE(std::ranges::all_of(logits, [](float value) { return std::isfinite(value); }));
}

// Latent projections that copy: the experts read and write the model's own channels.
TEST(NemotronH, ExpertsMayWorkInASmallerSpace) {
  EditedModel model(kNemotronExperts);
  const int d = 48;
  std::vector<float> identity(d * d, 0);
  for (int i = 0; i < d; ++i) identity[i * d + i] = 1;
  model.config["moe_latent_size"] = d;
  for (const char* layer : {"backbone.layers.1.mixer.", "backbone.layers.4.mixer."}) {
    for (const char* name : {"fc1_latent_proj.weight", "fc2_latent_proj.weight"}) {
      model.tensors[absl::StrCat(layer, name)] = {{d, d}, Bytes(identity)};
    }
  }
  const std::vector<float> logits = ComputeLogits(model),
                           expected = ComputeLogits(EditedModel(kNemotronExperts));
  kernels::test::AssertClose(logits, expected, 2e-5, "a copy");
  for (float& value : identity) value *= 2;
  model.tensors["backbone.layers.1.mixer.fc2_latent_proj.weight"].second = Bytes(identity);
  EXPECT_NE(ComputeLogits(model), expected);
  model.tensors.erase("backbone.layers.4.mixer.fc1_latent_proj.weight");
  model.ExpectError(absl::StatusCode::kNotFound, "fc1_latent_proj.weight");
}

// A token reads k of E experts, and a large batch all of them.
TEST(Mixture, ABatchReadsTheExpertsThatItsTokensChoose) {
  const auto context = BoundContext(kernels::Device::kCpu);
  for (const auto& [name, of_experts, chosen] :
       {std::tuple(kGraniteExperts, 4 * 8 * 3 * 20 * 32, 2 / 8.0),
        std::tuple(kQwenExperts, 4 * 6 * 3 * 16 * 40, 2 / 6.0),
        std::tuple(kNemotronExperts, 2 * 8 * 2 * 24 * 48, 2 / 8.0)}) {
    const auto model = LoadModel(LoadGolden(name).folder, *context);
    const double idle = of_experts * (1 - chosen);
    EXPECT_EQ(model->parameters() - model->active_parameters(), std::lround(idle)) << name;
    const auto all = static_cast<double>(model->weight_count().bytes);
    EXPECT_NEAR(all - model->weight_count().ReadBy(1), idle * sizeof(float), 1) << name;
    EXPECT_LT(model->weight_count().ReadBy(1), model->weight_count().ReadBy(2));
    EXPECT_NEAR(model->weight_count().ReadBy(100), all, 1);
  }
  const auto dense = LoadModel(LoadGolden(kNemotron).folder, *context);
  EXPECT_EQ(dense->active_parameters(), dense->parameters());
  EXPECT_EQ(dense->weight_count().ReadBy(1), static_cast<double>(dense->weight_count().bytes));
}

}  // namespace
}  // namespace ovq::model::test
