// Checkpoints of flash-linear-attention, transformers and state-spaces: refusals and defaults of
// absent fields. fixtures_test.cc tests their logits.
#include <gtest/gtest.h>

#include <string>

#include "model/load_config.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

constexpr char kGdn[] = "fla/fla-gated_deltanet";
constexpr char kHybrid[] = "published/fla_gated_deltanet-hybrid";
constexpr char kKda[] = "published/fla_kda";
constexpr char kMesa[] = "fla/fla-mesa_net";
constexpr char kHub[] = "fla/hf-mamba2";
constexpr char kStateSpaces[] = "fla/state-spaces-mamba2";

// A list of objects says the same as one object for all their layers.
TEST(RecurrentFamilies, AttentionLayersInOneObjectOrInSeveral) {
  const EditedModel one(kHybrid);
  EditedModel several = one.Copy();
  nlohmann::json first = one.config["attn"], second = one.config["attn"];
  first["layers"] = {1};
  second["layers"] = {4};
  several.config["attn"] = {first, second};
  EXPECT_EQ(ComputeLogits(several), ComputeLogits(one));
  second["rope_theta"] = 100;
  several.config["attn"] = {first, second};
  EXPECT_NE(ComputeLogits(several), ComputeLogits(one));
}

TEST(RecurrentFamilies, RefuseWhatTheyDoNotHave) {
  ExpectRefused(kGdn, {{"attn", 3}}, "attn: expected an object");
  ExpectRefused(kHybrid, {{"attn", {{"layers", nullptr}}}}, "attn.layers: expected a list");
  ExpectRefused(kHybrid, {{"attn", {{"layers", {1, 5}}}}},
                "attn.layers: expected layers in [0, 4], got 5");
  ExpectRefused(kHybrid, {{"attn", {{"layers", {1, 1}}}}}, "attn.layers: layer 1 is named twice");
  ExpectRefused(kHybrid, {{"attn", {{"num_kv_heads", 3}}}},
                "attn.num_kv_heads: expected a divisor of num_attention_heads = 4, got 3");
  ExpectRefused(kHybrid, {{"attn", {{"window_size", 0}}}}, "attn.window_size: expected an integer");
  ExpectRefused(kKda, {{"lower_bound", 5.0}}, "lower_bound: expected a number in [-10000, 0]");
  ExpectRefused(kGdn, {{"attnres_block_size", 4}}, "attnres_block_size: expected null");
  ExpectRefused(kGdn, {{"hidden_act", "powlu"}}, "hidden_act: unknown value 'powlu'");
  ExpectRefused(kMesa, {{"hidden_act", "gelu"}}, "hidden_act: unknown value 'gelu'");
  ExpectRefused(kHub, {{"hidden_act", "gelu"}}, "hidden_act: unknown value 'gelu'");
  ExpectRefused(kStateSpaces, {{"attn_layer_idx", {1}}}, "attn_layer_idx: expected no layers");
  ExpectRefused(kStateSpaces, {{"d_intermediate", 64}}, "d_intermediate: expected an integer");
  ExpectRefused(kStateSpaces, {{"ssm_cfg", {{"layer", "Mamba1"}}}}, "ssm_cfg.layer: expected");
  ExpectRefused(kStateSpaces, {{"ssm_cfg", {{"layer", nullptr}}}}, "ssm_cfg.layer: expected");
  ExpectRefused(kStateSpaces, {{"ssm_cfg", {{"d_ssm", 32}}}}, "ssm_cfg.d_ssm: expected null");
  ExpectRefused(kStateSpaces, {{"ssm_cfg", 3}}, "ssm_cfg: expected an object");
}

TEST(RecurrentFamilies, NameFieldsAsTheFileDoes) {
  ExpectRefused(kGdn, {{"num_v_heads", 3}}, "num_v_heads: expected a multiple");
  ExpectRefused(kGdn, {{"norm_eps", 2.0}}, "norm_eps: expected a number in [0, 1]");
  ExpectRefused(kMesa, {{"max_cg_step_training", -1}}, "max_cg_step_training: expected");
  ExpectRefused(kHub, {{"time_step_limit", {0.0}}}, "time_step_limit: expected a list of 2");
  ExpectRefused(kHub, {{"expand", 3}}, "expand: ");
  ExpectRefused(kStateSpaces, {{"ssm_cfg", {{"d_state", 0}}}}, "ssm_cfg.d_state: expected");
  ExpectRefused(kStateSpaces, {{"ssm_cfg", {{"ngroups", 5}}}}, "ssm_cfg.ngroups: ");
}

TEST(RecurrentFamilies, NameTensorsAsTheFileDoes) {
  for (const auto& [name, tensor] : {std::pair{kGdn, "model.layers.1.attn.A_log"},
                                     {kMesa, "model.layers.0.attn.lambda_params"},
                                     {kHub, "backbone.norm_f.weight"},
                                     {kStateSpaces, "backbone.layers.1.mixer.D"}}) {
    EditedModel model(name);
    ASSERT_EQ(model.tensors.erase(tensor), 1u) << tensor;
    model.ExpectError(absl::StatusCode::kNotFound, tensor);
  }
}

// Mesa layers from before June 2025 have this tensor and another gate.
TEST(RecurrentFamilies, RefuseTensorsThatNobodyReads) {
  EditedModel mesa(kMesa);
  mesa.tensors["model.layers.0.attn.A_log"] = mesa.tensors["model.layers.0.attn.a_proj.bias"];
  mesa.ExpectError(absl::StatusCode::kInvalidArgument, "model.layers.0.attn.A_log");
}

// Width 256 * ceil(int(48 * 4 * 2 / 3) / 256), and no stored head beside the embedding.
TEST(RecurrentFamilies, FillInWhatTheFileLeavesOut) {
  const EditedModel gdn(kGdn);
  const auto model = gdn.Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->config().layers[0].feed_forward.width, 256);

  EditedModel padded(kStateSpaces);
  const auto rounded_up = padded.Load();
  ASSERT_TRUE(rounded_up.ok()) << rounded_up.status();
  EXPECT_EQ((*rounded_up)->config().vocab_size, 112);  // 101 rounded up to a multiple of 16
  EXPECT_TRUE((*rounded_up)->config().tie_word_embeddings);
  ASSERT_EQ(padded.tensors.erase("lm_head.weight"), 1u);
  EXPECT_TRUE(padded.Load().ok());
}

// Python's bare word Infinity, which is not JSON, means no bound. In a string it is text.
TEST(RecurrentFamilies, ReadPythonsInfinity) {
  const Golden golden = LoadGolden("fla/fla-mamba2");
  const std::string text = ReadBytes(golden.folder + "/config.json");
  ASSERT_NE(text.find(" Infinity"), std::string::npos);
  const auto config = LoadConfig(golden.folder);
  EXPECT_TRUE(config.ok()) << config.status();

  const TempFolder folder;
  const auto load = [&](const std::string& field) {
    folder.Write("config.json", "{" + field + "," + text.substr(text.find('{') + 1));
    return LoadConfig(folder.path());
  };
  const auto named = load(R"("a\" Infinity": "-Infinity \\", "b": [Infinity])");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(named->canonical, ::testing::HasSubstr(R"("a\" Infinity":"-Infinity \\")"));
  EXPECT_FALSE(load(R"("norm_eps": -Infinity)").ok());
}

}  // namespace
}  // namespace ovq::model::test
