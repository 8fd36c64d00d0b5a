#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/problems.h"
#include "kernels/mixers/ovq/ovq.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/language_model.h"
#include "model/load_config.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Base() {
  return {{"model_type", "ovq_hybrid"},
          {"architectures", {"OvqHybridForCausalLM"}},
          {"vocab_size", 300},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"head_dim", 16},
          {"intermediate_size", 96},
          {"layer_types", {"sliding_attention", "ovq_attention"}},
          {"sliding_window", 16},
          {"ovq", {{"chunk_size", 16}, {"max_centroids", 24}}}};
}

absl::StatusOr<ModelConfig> Load(const Json& json) {
  const TempFolder folder;
  folder.Write("config.json", json.dump());
  return LoadConfig(folder.path());
}

TEST(ModelName, IsTheFoldersOrThatOfTheHub) {
  const TempFolder temp;
  const std::filesystem::path root = std::filesystem::canonical(temp.path());
  const auto hashed = root / "hub/models--org--my-model/snapshots/0123abcd";
  std::filesystem::create_directories(hashed);
  std::filesystem::create_directories(root / "hub/models--gpt2/snapshots/4567");
  EXPECT_EQ(ModelName(hashed), "org/my-model");
  EXPECT_EQ(ModelName(hashed.string() + "/"), "org/my-model");
  EXPECT_EQ(ModelName((root / "hub/../hub").string() + "/models--gpt2/snapshots/./4567"), "gpt2");
  std::filesystem::create_symlink(root / "hub/models--org--my-model", root / "link");
  EXPECT_EQ(ModelName(root / "link/snapshots/0123abcd"), "org/my-model");
  std::filesystem::create_symlink(hashed, root / "mine");
  EXPECT_EQ(ModelName(root / "mine"), "mine");
  EXPECT_EQ(ModelName("/somewhere/tiny/"), "tiny");
  EXPECT_EQ(ModelName("/models--a--b/snapshots"), "snapshots");
  EXPECT_EQ(ModelName("/somewhere/caf\xe9"), "caf\xef\xbf\xbd");
  EXPECT_EQ(ModelName("/models--a--\xfc"
                      "ber/snapshots/0123"),
            "a/\xef\xbf\xbd"
            "ber");
}

// Sets one field and expects an error that names it.
void ExpectError(const std::string& field, const Json& value, const std::string& text) {
  Json json = Base();
  json[field] = value;
  const absl::Status status = Load(json).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(Message(status), HasSubstr("config.json: " + text));
}

int64_t DefaultSlotCap(const ModelConfig& config) {
  const auto layout = PlanStateLayout(config, kernels::DType::kF32, {}, kernels::Device::kCpu,
                                      kernels::kHostPageBytes);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout->default_slot_cap();
}

TEST(LoadConfig, ReadsFieldsAndDefaults) {
  const auto config = Load(Base());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 300);
  EXPECT_EQ(config->n_layers, 2);
  EXPECT_THAT(config->layer_types(), ElementsAre("sliding_attention", "ovq_attention"));
  EXPECT_EQ(config->layers[0].feed_forward.width, 96);
  EXPECT_EQ(config->layers[1].feed_forward.width, 96);
  EXPECT_EQ(config->norm.eps, 1e-5f);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_FALSE(config->norm.bias);
  EXPECT_EQ(config->final_norm.kind, NormKind::kRms);
  EXPECT_FALSE(config->lm_head_bias);
  EXPECT_EQ(config->logit_scale, 1);
  EXPECT_EQ(config->sinusoid_base, 0);
  EXPECT_FALSE(config->bos_token_id.has_value());
  EXPECT_TRUE(config->eos_token_ids.empty());
  EXPECT_EQ(DefaultSlotCap(*config), 24);
  EXPECT_EQ(config->weights_dtype, kernels::DType::kF32);
  EXPECT_EQ(config->tokenizer, TokenizerKind::kNone);
  EXPECT_EQ(kernels::FieldsAs<kernels::SlidingConfig>(*config->layers[0].mixer).window, 16);
  const auto& ovq = kernels::FieldsAs<kernels::OvqConfig>(*config->layers[1].mixer);
  EXPECT_EQ(ovq.chunk_len, 16);
  EXPECT_EQ(ovq.shape.n_kv_heads, 4);
  EXPECT_EQ(ovq.shape.value_head_dim, 16);
}

TEST(LoadConfig, ReadsOptionalFields) {
  Json json = Base();
  json["intermediate_size"] = {0, 32};
  json["bos_token_id"] = 1;
  json["eos_token_id"] = {2, 3};
  json["torch_dtype"] = "bfloat16";
  json["tokenizer"] = "bytes";
  json["tokenizer_byte_offset"] = 4;
  json["rope_scaling"] = nullptr;
  json["norm_bias"] = true;
  json["final_norm"] = false;
  json["lm_head_bias"] = true;
  json["logit_scale"] = 0.005;
  json["pe_abs"] = true;
  json.erase("ovq");
  const auto config = Load(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers[0].feed_forward.kind, FeedForwardKind::kNone);
  EXPECT_EQ(config->layers[1].feed_forward.width, 32);
  EXPECT_TRUE(config->norm.bias);
  EXPECT_EQ(config->final_norm.kind, NormKind::kNone);
  EXPECT_TRUE(config->lm_head_bias);
  EXPECT_EQ(config->logit_scale, 0.005f);
  EXPECT_EQ(config->sinusoid_base, 100000);
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 3));
  EXPECT_EQ(config->weights_dtype, kernels::DType::kBF16);
  EXPECT_EQ(config->tokenizer, TokenizerKind::kBytes);
  EXPECT_EQ(config->tokenizer_byte_offset, 4);
  EXPECT_EQ(DefaultSlotCap(*config), 2048);
  json["eos_token_id"] = 2;
  json.erase("torch_dtype");
  json["dtype"] = "float16";
  const auto other = Load(json);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(other->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(other->weights_dtype, kernels::DType::kF16);
}

// The fields named by the errors, in order.
std::vector<std::string> WrongFields(const Json& json, ModelConfig& config) {
  const TempFolder folder;
  folder.Write("config.json", json.dump());
  std::vector<std::string> fields;
  for (const absl::Status& problem : SplitProblems(LoadConfig(folder.path(), config))) {
    const std::string message = Message(problem).substr(folder.file("config.json: ").size());
    fields.push_back(message.substr(0, message.find(':')));
  }
  return fields;
}

TEST(LoadConfig, TellsAllThatIsWrong) {
  Json json = Base();
  json["slidign_window"] = 3;
  json["rms_norm_eps"] = "small";
  json["hidden_act"] = "gelu";
  json["bos_token_id"] = 300;
  json["eos_token_id"] = {2, 400};
  json["torch_dtype"] = "int8";
  json["tokenizer"] = "wordpiece";
  json["ovq"] = {{"chunk_size", 1}, {"max_centroids", 1}, {"centroids", 5}};
  json["kvmm"] = Json::object();
  ModelConfig config;
  EXPECT_THAT(
      WrongFields(json, config),
      testing::UnorderedElementsAre("slidign_window", "rms_norm_eps", "hidden_act", "bos_token_id",
                                    "eos_token_id", "torch_dtype", "tokenizer", "ovq.chunk_size",
                                    "ovq.max_centroids", "ovq.centroids", "kvmm"));
  ASSERT_EQ(config.layers.size(), 2u);
  EXPECT_FALSE(config.layers[0].is_wrong);
  EXPECT_TRUE(config.layers[1].is_wrong);
  EXPECT_EQ(config.vocab_size, 300);
}

TEST(LoadConfig, WhatIsUnknownHidesNoOtherField) {
  Json json = Base();
  json["layer_types"] = {"foo", "ovq_attention"};
  json["slidign_window"] = 3;
  ModelConfig config;
  EXPECT_THAT(WrongFields(json, config), ElementsAre("layer_types[0]", "slidign_window"));
  EXPECT_TRUE(config.layers[0].is_wrong);
  EXPECT_FALSE(config.layers[1].is_wrong);
  json = Base();
  json.erase("vocab_size");
  json["num_hidden_layers"] = 3;
  json["ovq"]["chunk_size"] = 1;
  config = {};
  EXPECT_THAT(WrongFields(json, config),
              ElementsAre("vocab_size", "layer_types", "ovq.chunk_size"));
  EXPECT_TRUE(config.layers[0].is_wrong && config.layers[1].is_wrong);
  json = Base();
  json["model_type"] = "gpt2";
  json["eos_token_id"] = -1;
  config = {};
  EXPECT_THAT(WrongFields(json, config), ElementsAre("model_type", "eos_token_id"));
}

TEST(LoadConfig, CanonicalIgnoresOrderSpacesAndBookkeeping) {
  const TempFolder one, two;
  one.Write("config.json", Base().dump());
  Json json = Base();
  json["transformers_version"] = "5";
  two.Write("config.json", json.dump(4));
  EXPECT_EQ(LoadConfig(one.path())->canonical, LoadConfig(two.path())->canonical);
  json["sliding_window"] = 17;
  EXPECT_NE(Load(json)->canonical, Load(Base())->canonical);
}

TEST(LoadConfig, NamesTheFolder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.file("tiny"));
  folder.Write("tiny/config.json", Base().dump());
  EXPECT_EQ(LoadConfig(folder.file("tiny"))->name, "tiny");
  EXPECT_EQ(LoadConfig(folder.file("tiny/"))->name, "tiny");
}

TEST(LoadConfig, NamesTheFieldThatIsWrong) {
  ExpectError("model_type", "gpt2", "model_type: unknown value 'gpt2'; known: ovq_hybrid");
  ExpectError("model_type", 3, "model_type: expected a string");
  ExpectError("vocab_size", "many", "vocab_size: expected an integer");
  ExpectError("vocab_size", 18446744073709551615u,
              "vocab_size: expected an integer in [1, 2097152], got 1.8");
  ExpectError("hidden_size", nullptr, "hidden_size: expected an integer in [1, 1048576], but");
  ExpectError("num_hidden_layers", 3, "layer_types: has 2 entries, num_hidden_layers is 3");
  ExpectError("layer_types", {"ovq_attention", "vq_attention"},
              "vq.codebook_size: expected an integer in [1, 1048576], but it is missing");
  ExpectError("layer_types", {"ovq_attention", "foo"},
              "layer_types[1]: unknown layer type 'foo'; known: sliding_attention, ");
  ExpectError("layer_types", {"ovq_attention", 3}, "layer_types: expected a list of");
  ExpectError("intermediate_size", {96}, "intermediate_size: expected one entry");
  ExpectError("intermediate_size", -1, "intermediate_size: expected an integer");
  ExpectError("hidden_act", "gelu", "hidden_act: unknown value 'gelu'");
  ExpectError("rms_norm_eps", -1, "rms_norm_eps: expected a number");
  ExpectError("tie_word_embeddings", 1, "tie_word_embeddings: expected true or false");
  ExpectError("norm_bias", 1, "norm_bias: expected true or false");
  ExpectError("final_norm", "no", "final_norm: expected true or false");
  ExpectError("lm_head_bias", 0, "lm_head_bias: expected true or false");
  ExpectError("logit_scale", 0, "logit_scale: expected a number");
  ExpectError("pe_abs", 1, "pe_abs: expected true or false");
  ExpectError("pe_lam", 0.5, "pe_lam: expected a number");
  ExpectError("num_key_value_heads", 3,
              "num_key_value_heads: expected a divisor of num_attention_heads = 4, got 3");
  ExpectError("head_dim", 15, "head_dim: expected an even number for RoPE, got 15");
  ExpectError("sliding_window", 0, "sliding_window: expected");
  ExpectError("rope_theta", 0, "rope_theta: expected");
  ExpectError("attn_scale", -0.1, "attn_scale: expected a number in [0, 100], got -0.1");
  ExpectError("floor_scale", 0, "floor_scale: expected an integer in [1, 1099511627776], got 0");
  ExpectError("ovq", {{"chunk_size", 1}}, "ovq.chunk_size: expected an integer in [2, ");
  ExpectError("ovq", {{"max_centroids", 1}}, "ovq.max_centroids: expected an integer in [2, ");
  ExpectError("ovq", {{"max_centroids", {{"a", 1}}}}, "ovq.max_centroids: an object");
  ExpectError("rope_scaling", {{"factor", 2}},
              "rope_scaling: unknown section; known: bswa, ovq, kvm, vq");
  ExpectError("bos_token_id", 300, "bos_token_id: expected an integer in [0, 299]");
  ExpectError("eos_token_id", {2, 300}, "eos_token_id: expected integers in [0, 299]");
  ExpectError("eos_token_id", "</s>", "eos_token_id: expected integers");
  ExpectError("torch_dtype", "int8", "torch_dtype: unknown value 'int8'");
  ExpectError("tokenizer", "wordpiece", "tokenizer: unknown value 'wordpiece'; known: bytes");
  ExpectError("tokenizer_byte_offset", 4, "tokenizer_byte_offset: given without");
}

TEST(LoadConfig, TokenizerFilesMustNotContradict) {
  const TempFolder folder;
  Json json = Base();
  folder.Write("config.json", json.dump());
  folder.Write("tokenizer.json", "{}");
  EXPECT_EQ(LoadConfig(folder.path())->tokenizer, TokenizerKind::kBpe);
  folder.Write("tokenizer.model", "x");
  EXPECT_EQ(LoadConfig(folder.path())->tokenizer, TokenizerKind::kBpe);
  const TempFolder pieces;
  pieces.Write("config.json", json.dump());
  pieces.Write("tokenizer.model", "x");
  EXPECT_EQ(LoadConfig(pieces.path())->tokenizer, TokenizerKind::kSentencePiece);
  json["tokenizer"] = "bytes";
  folder.Write("config.json", json.dump());
  EXPECT_THAT(Message(LoadConfig(folder.path()).status()),
              HasSubstr("tokenizer: is \"bytes\", but the folder has a tokenizer.model"));
  json["tokenizer_byte_offset"] = 45;
  ExpectError("tokenizer", "byte", "tokenizer: unknown value");
  EXPECT_THAT(Message(Load(json).status()), HasSubstr("need a vocab_size of 301, got 300"));
}

TEST(LoadConfig, NamesFilesThatAreNoConfig) {
  const TempFolder folder;
  EXPECT_EQ(LoadConfig(folder.path()).status().code(), absl::StatusCode::kNotFound);
  for (std::string_view text : {"", "{", "[]", "{\"a\":1,\"a\":2}", "{\"a\":1e999}"}) {
    folder.Write("config.json", text);
    const absl::Status status = LoadConfig(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(Message(status), HasSubstr("config.json: "));
  }
}

}  // namespace
}  // namespace ovq::model::test
