// Models in GGUF files: golden logits, and errors that name what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/text.h"
#include "kernels/mixers/common/attention.h"
#include "model/load_config.h"
#include "model/tokenizer.h"
#include "model/tokenizers/gguf_tokenizer.h"
#include "model/weights.h"
#include "tests/folders.h"
#include "tests/model/gguf/gguf_test_util.h"
#include "tests/model/golden_util.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A golden file, or the first part of one.
std::string GgufGolden(std::string_view name) {
  const std::string path = absl::StrCat(GoldenFolder(), "/gguf/", AbslView(name));
  return std::filesystem::exists(path + ".gguf") ? path + ".gguf" : path + "-00001-of-00002.gguf";
}

class GgufModels : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufModels, GiveTheLogitsOfTheirFolders) {
  constexpr float kTolerance = 3e-5f;  // as in fixtures_test.cc
  const Golden golden = LoadGolden(absl::StrCat("published/", GetParam()));
  const auto context = BoundContext(kernels::Device::kCpu);
  const auto model = LoadModel(GgufGolden(GetParam()), *context);
  EXPECT_EQ(model->config().name, GetParam());
  EXPECT_EQ(model->config().weights_dtype, kernels::DType::kF32);
  const SafetensorsFile expected = OpenSafetensors(golden.folder + "/expected.safetensors").value();
  const bool is_longrope = std::string_view(GetParam()) == "phi3-longrope";
  for (size_t i = 0; i < golden.sequences.size(); ++i) {
    // Sessions may exceed its first length, so its factors are those of long texts.
    if (is_longrope && golden.sequences[i].size() <= 64) continue;
    Session session(*model, *context, golden.sequences[i], 2);
    session.Feed(session.remaining());
    const kernels::TensorView logits = View(expected, golden.whole[i]);
    ASSERT_EQ(session.logits().size(), static_cast<size_t>(logits.shape.elements()));
    for (size_t j = 0; j < session.logits().size(); ++j) {
      ASSERT_NEAR(session.logits()[j], logits.as<float>()[j], kTolerance) << i << " " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufModels,
                         ::testing::Values("llama-scaled", "gemma3_text-1b", "phi3-longrope",
                                           "granitemoehybrid-dense", "granitemoehybrid-moe",
                                           "qwen3_5-tied", "qwen3_5_moe-hub", "nemotron_h-dense",
                                           "nemotron_h-moe", "kimi_linear-hub"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

// With two key heads for six value heads an order that is turned the wrong way is another one.
TEST(GgufModel, HasValueHeadsInTheFamilysOrder) {
  const auto context = BoundContext(kernels::Device::kCpu);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back(i * 7 % 24);
  std::vector<std::vector<float>> logits;
  for (const char* ending : {"", ".gguf"}) {
    const auto model =
        LoadModel(absl::StrCat(GoldenFolder(), "/gguf/qwen3_5-uneven", ending), *context);
    Session session(*model, *context, tokens, 2);
    session.Feed(session.remaining());
    logits.push_back(session.logits());
  }
  ASSERT_EQ(logits[0].size(), logits[1].size());
  for (size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[0][i], logits[1][i], 1e-5f) << i;
}

TEST(GgufModel, KeepsFloat32ThatItReorders) {
  Weights weights;
  ASSERT_TRUE(Weights::Open(GgufGolden("qwen3_5-uneven"), weights).ok());
  weights.SetMadeDType(kernels::DType::kBF16);
  const auto decay = weights.GetTensor("model.layers.0.linear_attn.A_log", {6});
  ASSERT_TRUE(decay.ok()) << decay.status();
  EXPECT_EQ(decay->dtype, kernels::DType::kF32);
}

TEST(GgufModel, HasTheNumbersOfItsExpertsBlocks) {
  const std::string path = absl::StrCat(GoldenFolder(), "/gguf/experts");
  Weights weights;
  const absl::Status status = Weights::Open(path + ".gguf", weights);
  ASSERT_TRUE(status.ok()) << status;
  const SafetensorsFile expected = OpenSafetensors(path + ".safetensors").value();
  EXPECT_EQ(weights.tensors().size(), expected.tensors().size());
  for (const auto& [name, stored] : expected.tensors()) {
    const absl::StatusOr<kernels::TensorView> got = weights.GetTensor(name, stored.shape);
    ASSERT_TRUE(got.ok()) << got.status();
    const kernels::TensorView wanted = View(expected, name);
    for (int64_t i = 0; i < wanted.shape.elements(); ++i) {
      ASSERT_EQ(kernels::FloatAt(*got, i), wanted.as<float>()[i]) << name << " " << i;
    }
  }
}

constexpr uint64_t kGgufWidth = 32, kGgufVocab = 8, kGgufInner = 64;

// The keys of a model of one layer with two heads, but for context_length.
GgufWriter OneLayer(const std::string& architecture) {
  GgufWriter writer;
  writer.Key("general.architecture", architecture);
  writer.Key(architecture + ".block_count", 1u);
  writer.Key(architecture + ".embedding_length", uint32_t{kGgufWidth});
  writer.Key(architecture + ".feed_forward_length", uint32_t{kGgufInner});
  writer.Key(architecture + ".attention.head_count", 2u);
  writer.Key(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return writer;
}

// A model whose weights are all 1/16.
GgufWriter OneLayer() {
  GgufWriter writer = OneLayer("llama");
  writer.Key("llama.context_length", 100u);
  return writer;
}

std::string Sixteenths(uint64_t n) {
  std::string bytes;
  for (uint64_t i = 0; i < n; ++i) bytes += Raw(0.0625f);
  return bytes;
}

// Adds the tensors but for those named, all F32.
void AddTensors(GgufWriter& writer, const std::vector<std::string>& without = {}) {
  const auto add = [&](const char* name, std::vector<uint64_t> dims) {
    if (std::ranges::find(without, name) != without.end()) return;
    writer.Tensor(name, dims, 0, Sixteenths(dims[0] * (dims.size() > 1 ? dims[1] : 1)));
  };
  add("token_embd.weight", {kGgufWidth, kGgufVocab});
  add("output_norm.weight", {kGgufWidth});
  for (const char* norm : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"})
    add(norm, {kGgufWidth});
  for (const char* matrix : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight",
                             "blk.0.attn_output.weight"}) {
    add(matrix, {kGgufWidth, kGgufWidth});
  }
  for (const char* matrix : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}) {
    add(matrix, {kGgufWidth, kGgufInner});
  }
  add("blk.0.ffn_down.weight", {kGgufInner, kGgufWidth});
}

absl::Status LoadGguf(const GgufWriter& writer) {
  const TempFolder folder;
  folder.Write("m.gguf", writer.Bytes());
  const auto context = BoundContext(kernels::Device::kCpu);
  const auto model = LanguageModel::Load(folder.file("m.gguf"), kSmallSessions, *context);
  if (!model.ok()) return model.status();
  return Tokenizer::Load(folder.file("m.gguf"), (*model)->config()).status();
}

std::string ModelProblem(const GgufWriter& writer) { return Message(LoadGguf(writer)); }

TEST(GgufModel, IsLoaded) {
  GgufWriter writer = OneLayer();
  AddTensors(writer);
  EXPECT_EQ(ModelProblem(writer), "");
}

TEST(GgufModel, ErrorsNameTheKey) {
  const auto with = [](auto change) {
    GgufWriter writer = OneLayer();
    change(writer);
    AddTensors(writer);
    return ModelProblem(writer);
  };
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("llama.clamp", 1.0f); }),
              HasSubstr("/m.gguf: llama.clamp: unknown field"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("llama.rope.freq_base", "x"); }),
              HasSubstr("llama.rope.freq_base: expected a number"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("llama.expert_count", 8u); }),
              HasSubstr("llama.expert_count: expected 0"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("llama.rope.dimension_count", 8u); }),
              HasSubstr("llama.rope.dimension_count: expected attention.key_length"));
  EXPECT_THAT(with([](GgufWriter& w) { w.Key("llama.rope.scaling.type", "dynamic"); }),
              HasSubstr("llama.rope.scaling.type: expected none, linear, yarn or longrope"));
  EXPECT_THAT(
      with([](GgufWriter& w) { w.Key("tokenizer.ggml.eos_token_id", uint32_t{kGgufVocab}); }),
      HasSubstr("tokenizer.ggml.eos_token_id: expected an integer in [0, 7]"));
  GgufWriter writer;
  AddTensors(writer);
  EXPECT_THAT(ModelProblem(writer), HasSubstr("general.architecture: expected one of llama, "));
  writer.Key("general.architecture", "mamba");
  EXPECT_THAT(ModelProblem(writer), HasSubstr("got 'mamba'"));
}

TEST(GgufModel, HasItsWindowUnlessTheContextIsShorter) {
  const auto type = [](uint32_t context_length) {
    GgufWriter writer = OneLayer("phi3");
    if (context_length > 0) writer.Key("phi3.context_length", context_length);
    writer.Key("phi3.attention.sliding_window", 16u);
    AddTensors(writer);
    const TempFolder folder;
    folder.Write("m.gguf", writer.Bytes());
    const absl::StatusOr<ModelConfig> config = LoadConfig(folder.file("m.gguf"));
    Check(config.ok(), Message(config.status()).c_str());
    return config->layers[0].type;
  };
  EXPECT_EQ(type(100), "sliding_attention");
  EXPECT_EQ(type(16), "full_attention");
  EXPECT_EQ(type(0), "sliding_attention");  // without the key nothing says that it is shorter
}

// The factors of RoPE of a file with such a tensor, or the error.
std::string RopeFactors(const char* architecture, const std::vector<uint64_t>& dims,
                        const char* scaling = nullptr, const char* tensor = "rope_freqs.weight") {
  GgufWriter writer = OneLayer(architecture);
  writer.Key(absl::StrCat(architecture, ".attention.head_count_kv"), 2u);
  if (scaling != nullptr) {
    writer.Key(absl::StrCat(architecture, ".rope.scaling.type"), scaling);
  }
  AddTensors(writer);
  writer.Tensor(tensor, dims, 0, Sixteenths(8));
  const TempFolder folder;
  folder.Write("m.gguf", writer.Bytes());
  const absl::StatusOr<ModelConfig> config = LoadConfig(folder.file("m.gguf"));
  if (!config.ok()) return Message(config.status());
  Weights weights;
  const absl::Status status = Weights::Open(folder.file("m.gguf"), weights);
  if (!status.ok()) return Message(status);
  std::string text = weights.Has("rope_freqs.weight") ? "a weight" : "";
  for (const double factor : config->layers[0].mixer->attention()->input.rope.factors) {
    absl::StrAppend(&text, factor, " ");
  }
  return text;
}

TEST(GgufModel, FactorsOfRopeCountOrAreAWeightThatNobodyUses) {
  for (const char* name : {"llama", "granite"}) {
    EXPECT_EQ(RopeFactors(name, {8}), "16 16 16 16 16 16 16 16 ") << name;
    EXPECT_THAT(RopeFactors(name, {4, 2}),
                HasSubstr("rope_scaling.divisors: expected a list of 8 numbers, got \"[2, 4]\""));
    EXPECT_THAT(RopeFactors(name, {8}, "linear"),
                HasSubstr("rope.scaling.type: expected none beside rope_freqs.weight"));
  }
  EXPECT_THAT(RopeFactors("phi3", {8}, nullptr, "rope_factors_short.weight"),
              HasSubstr("rope_scaling.long_factor: expected a list of 8 numbers"));
  for (const char* name : {"smollm3", "qwen3", "phi3"}) {
    EXPECT_EQ(RopeFactors(name, {8}), "a weight") << name;
  }
}

TEST(GgufModel, ErrorsNameTheTensor) {
  const auto with = [](const char* name, const std::vector<uint64_t>& dims, uint32_t type,
                       const std::string& bytes) {
    GgufWriter writer = OneLayer();
    AddTensors(writer, {name});
    if (!dims.empty()) writer.Tensor(name, dims, type, bytes);
    return ModelProblem(writer);
  };
  EXPECT_THAT(with("token_embd.weight", {}, 0, ""), HasSubstr("tensor 'token_embd.weight'"));
  EXPECT_THAT(with("blk.0.attn_q.weight", {}, 0, ""),
              HasSubstr("m.gguf: tensor 'model.layers.0.self_attn.q_proj.weight' is missing"));
  EXPECT_THAT(with("blk.0.attn_q.weight", {kGgufWidth, 8}, 0, Sixteenths(kGgufWidth * 8)),
              HasSubstr("model.layers.0.self_attn.q_proj.weight: expected [32, 32], got [8, 32]"));
  EXPECT_EQ(with("blk.0.attn_norm.weight", {kGgufWidth}, 8, std::string(34, '\1')), "");
  EXPECT_THAT(with("blk.0.something.weight", {kGgufWidth}, 0, Sixteenths(kGgufWidth)),
              HasSubstr("tensor 'blk.0.something.weight' [32]: no part of the model"));
  EXPECT_THAT(with("model.norm.weight", {kGgufWidth}, 0, Sixteenths(kGgufWidth)),
              HasSubstr("is model.norm.weight, as is "));
  // The scale of a block is NaN.
  EXPECT_THAT(
      with("blk.0.attn_q.weight", {kGgufWidth, kGgufWidth}, 8,
           std::string(34 * kGgufWidth, '\x7f')),
      HasSubstr("model.layers.0.self_attn.q_proj.weight: expected finite numbers, got nan"));
}

// A hybrid of that name that has the matrices of one layer of OneLayer.
GgufWriter Hybrid(const char* name) {
  GgufWriter writer;
  writer.Key("general.architecture", name);
  for (const auto& [key, value] : {std::pair{"block_count", 1u},
                                   {"embedding_length", uint32_t{kGgufWidth}},
                                   {"feed_forward_length", uint32_t{kGgufInner}},
                                   {"attention.head_count", 2u},
                                   {"expert_count", 2u},
                                   {"expert_used_count", 1u},
                                   {"expert_feed_forward_length", 4u},
                                   {"expert_shared_feed_forward_length", 4u}}) {
    writer.Key(absl::StrCat(name, ".", key), value);
  }
  return writer;
}

TEST(GgufModel, WhatAHybridCannotServeIsNamed) {
  const auto with = [](const char* name, const char* key, uint32_t value) {
    GgufWriter writer = Hybrid(name);
    writer.Key(absl::StrCat(name, ".", key), value);
    AddTensors(writer);
    const TempFolder folder;
    folder.Write("m.gguf", writer.Bytes());
    std::string problems;
    for (const absl::Status& problem : SplitProblems(LoadConfig(folder.file("m.gguf")).status())) {
      absl::StrAppend(&problems, problem.message(), "\n");
    }
    return problems;
  };
  EXPECT_THAT(with("kimi-linear", "attention.q_lora_rank", 8),
              HasSubstr("kimi-linear.attention.q_lora_rank: unknown field"));
  EXPECT_THAT(with("kimi-linear", "expert_gating_func", 3),
              HasSubstr("kimi-linear.expert_gating_func: expected 1 or 2, got 3"));
  EXPECT_THAT(with("nemotron_h_moe", "expert_gating_func", 1),
              HasSubstr("nemotron_h_moe.expert_gating_func: expected 2"));
  EXPECT_THAT(with("qwen35", "attention.value_length", 8),
              HasSubstr("qwen35.attention.value_length: expected attention.key_length"));
  EXPECT_THAT(with("qwen35", "rope.freq_base", 8), HasSubstr("qwen35.expert_count: expected 0"));
  EXPECT_THAT(with("qwen35moe", "nextn_predict_layers", 1),
              HasSubstr("qwen35moe.nextn_predict_layers: expected less than block_count"));
  EXPECT_THAT(with("granitehybrid", "expert_group_count", 2),
              HasSubstr("granitehybrid.expert_group_count: unknown field"));
  EXPECT_THAT(with("granitehybrid", "expert_weights_scale", 2),
              HasSubstr("granitehybrid.expert_weights_scale: unknown field"));
}

TEST(GgufModel, ErrorsNameTheTensorOfExperts) {
  const auto with = [](const char* name, const std::vector<uint64_t>& dims) {
    GgufWriter writer = Hybrid("kimi-linear");
    uint64_t n = 1;
    for (const uint64_t dim : dims) n *= dim;
    writer.Tensor(name, dims, 0, Sixteenths(n));
    const TempFolder folder;
    folder.Write("m.gguf", writer.Bytes());
    Weights weights;
    return Message(Weights::Open(folder.file("m.gguf"), weights));
  };
  EXPECT_EQ(with("blk.0.ffn_up_exps.weight", {8, 4, 2}), "");
  EXPECT_THAT(with("blk.0.ffn_up_exps.weight", {8, 4, 3}),
              HasSubstr("m.gguf: tensor 'blk.0.ffn_up_exps.weight': expected [2 (expert_count), "
                        "rows, columns], got [3, 4, 8]"));
  EXPECT_THAT(with("blk.0.ffn_up_exps.weight", {8, 8}), HasSubstr("columns], got [8, 8]"));
  EXPECT_THAT(with("blk.0.ffn_up_exps.weight", {0, 4, 2}), HasSubstr("columns], got [2, 4, 0]"));
  EXPECT_THAT(with("blk.0.ffn_gate_up_exps.weight", {8, 5, 2}),
              HasSubstr("twice the width, columns], got [2, 5, 8]"));
  EXPECT_THAT(with("blk.0.attn_k_b.weight", {8, 4, 2}),
              HasSubstr("tensor 'blk.0.attn_k_b.weight': expected [heads, rank, key], and beside "
                        "it 'blk.0.attn_v_b.weight' of [heads, value, rank]"));
}

TEST(GgufModel, EndsAreThoseOfTheKeysAndOfKnownTokens) {
  GgufWriter writer = OneLayer();
  writer.List<std::string>("tokenizer.ggml.tokens", kTextKind,
                           {"a", "<|im_end|>", "<|eot_id|>", "b", "<s>"});
  writer.List<int32_t>("tokenizer.ggml.token_type", kI32, {1, 3, 1, 1, 3});
  writer.Key("tokenizer.ggml.eos_token_id", 3u);
  writer.Key("tokenizer.ggml.bos_token_id", 4u);
  AddTensors(writer);
  const TempFolder folder;
  folder.Write("m.gguf", writer.Bytes());
  const absl::StatusOr<ModelConfig> config = LoadConfig(folder.file("m.gguf"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(3, 1));
  EXPECT_EQ(config->bos_token_id, 4);
  EXPECT_EQ(config->tokenizer, TokenizerKind::kBpe);
  EXPECT_EQ(config->name, "m");
}

// The longest token that a merge makes has 1 KiB. The search for ways to make one of 4 MB would
// take a quarter of an hour.
TEST(GgufModel, LongTokensAreNotMadeByMerges) {
  const auto as = [](size_t n) { return std::string(n, 'a'); };
  GgufWriter writer;
  writer.Key("general.architecture", "llama");
  writer.Key("tokenizer.ggml.model", "llama");
  writer.List<std::string>("tokenizer.ggml.tokens", kTextKind,
                           {"a", as(4 << 20), "b", "ab", as(512), as(513), as(1024), as(1025)});
  writer.List<float>("tokenizer.ggml.scores", kF32Kind, {0, -1, -2, -3, -4, -5, -6, -7});
  const TempFolder folder;
  folder.Write("m.gguf", writer.Bytes());
  GgufFile file;
  const absl::Status status = GgufFile::Open(folder.file("m.gguf"), file);
  ASSERT_TRUE(status.ok()) << status;
  const absl::StatusOr<TokenizerFile> tokenizer = GgufTokenizer(file, 8);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocab.size(), 8u);
  using Merge = std::pair<std::string, std::string>;
  EXPECT_THAT(tokenizer->merges, ElementsAre(Merge("a", "b"), Merge(as(512), "a"),
                                             Merge("a", as(512)), Merge(as(512), as(512))));
}

TEST(GgufModel, TokenizersThatAreNotServedAreNamed) {
  const auto with = [](const char* model, auto change) {
    GgufWriter writer = OneLayer();
    writer.Key("tokenizer.ggml.model", model);
    change(writer);
    AddTensors(writer);
    return ModelProblem(writer);
  };
  const auto nine = [](GgufWriter& w) {
    w.List<std::string>("tokenizer.ggml.tokens", kTextKind,
                        {"a", "b", "c", "d", "e", "f", "g", "h", "i"});
  };
  const auto two = [](GgufWriter& w) {
    w.List<std::string>("tokenizer.ggml.tokens", kTextKind, {"a", "b"});
  };
  EXPECT_THAT(with("bert", two), HasSubstr("tokenizer.ggml.model: expected gpt2 or llama"));
  EXPECT_THAT(with("llama", two), HasSubstr("tokenizer.ggml.scores: expected a list of numbers"));
  EXPECT_THAT(with("gpt2", two), HasSubstr("tokenizer.ggml.pre: expected one of gpt-2, "));
  EXPECT_THAT(with("gpt2",
                   [&](GgufWriter& w) {
                     two(w);
                     w.Key("tokenizer.ggml.pre", "viking");
                   }),
              HasSubstr("got 'viking'"));
  EXPECT_THAT(with("gpt2",
                   [&](GgufWriter& w) {
                     two(w);
                     w.Key("tokenizer.ggml.pre", "gpt-2");
                   }),
              HasSubstr("tokenizer.ggml.merges: expected a list of strings"));
  EXPECT_THAT(with("gpt2", nine), HasSubstr("tokenizer.ggml.tokens: expected 1 to 8 tokens"));
  EXPECT_THAT(with("llama",
                   [&](GgufWriter& w) {
                     two(w);
                     w.List<float>("tokenizer.ggml.scores", kF32Kind, {0, 0});
                     w.Key("tokenizer.ggml.add_bos_token", true);
                   }),
              HasSubstr("tokenizer.ggml.add_bos_token: is true, but no key has the id"));
}

}  // namespace
}  // namespace ovq::model::test
