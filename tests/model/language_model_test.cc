#include "model/language_model.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/model/edited_model.h"
#include "tests/model/golden_util.h"

namespace ovq::model::test {
namespace {

using ::testing::HasSubstr;

TEST(LanguageModel, KnowsItsSizes) {
  const auto context = BoundContext(kernels::Device::kCpu);
  const auto model = LoadModel(LoadGolden("sw-ovq-gqa").folder, *context);
  EXPECT_EQ(model->config().name, "sw-ovq-gqa");
  EXPECT_EQ(model->fingerprint().size(), 64u);
  // Embedding and head 101 x 64. A layer: q and o 64 x 64, k and v 32 x 64, beta 4, two norms of
  // 64, three matrices of 96 x 64. The final norm.
  const int64_t layer = 2 * 64 * 64 + 2 * 32 * 64 + 4 + 2 * 64 + 3 * 96 * 64;
  EXPECT_EQ(model->parameters(), 2 * 101 * 64 + 4 * layer + 64);
  EXPECT_GE(model->weight_count().bytes, sizeof(float) * (101 * 64 + 4 * (layer - 4) + 64));
  EXPECT_EQ(model->full_kv_bytes_per_token(), 4u * 2 * (16 + 16) * sizeof(float));
  EXPECT_EQ(model->compute_dtype(), kernels::DType::kF32);
}

TEST(LanguageModel, NamesTensorsThatDoNotFit) {
  EditedModel missing("sw-ovq");
  missing.tensors.erase("model.layers.1.self_attn.beta");
  missing.ExpectError(absl::StatusCode::kNotFound, "'model.layers.1.self_attn.beta' is missing");
  EditedModel shape("sw-ovq");
  shape.tensors["model.layers.2.mlp.down_proj.weight"].first = {96, 64};
  shape.ExpectError(absl::StatusCode::kInvalidArgument,
                    "model.layers.2.mlp.down_proj.weight: expected [64, 96], got [96, 64]");
  EditedModel unused("sw-ovq");
  unused.tensors["model.layers.0.self_attn.q_proj.bias"] = {{1}, std::string(4, '\0')};
  unused.ExpectError(absl::StatusCode::kInvalidArgument, "'model.layers.0.self_attn.q_proj.bias'");
}

TEST(LanguageModel, RefusesWeightsThatAreWrittenWhileTheyAreRead) {
  const EditedModel model("sw-ovq");
  const TempFolder folder;
  model.Write(folder);
  const std::string path = folder.file("model.safetensors");
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (time_t second = 1; !ends; ++second) {
      const timespec times[2] = {{.tv_sec = second, .tv_nsec = 0},
                                 {.tv_sec = second, .tv_nsec = 0}};
      utimensat(AT_FDCWD, path.c_str(), times, 0);
    }
  });
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {  // the writer may be late
    status = LanguageModel::Load(folder.path(), {}, *model.context).status();
  }
  ends = true;
  writer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Message(status), path + ": was written while it was read");
}

TEST(LanguageModel, NamesFieldsThatNobodyReads) {
  EditedModel top("sw-ovq");
  top.config["slidign_window"] = 4;
  top.ExpectError(absl::StatusCode::kInvalidArgument, "slidign_window: unknown field");
  EditedModel section("sw-ovq");
  section.config["ovq"]["centroids"] = 4;
  section.ExpectError(absl::StatusCode::kInvalidArgument, "ovq.centroids: unknown field");
  EditedModel elsewhere("sw-full");  // no layer of this model reads "ovq"
  elsewhere.config["ovq"]["centroids"] = 4;
  EXPECT_TRUE(elsewhere.Load().ok());
}

TEST(LanguageModel, NamesFieldsOfMixersThatAreWrong) {
  const auto expect = [](const char* name, const char* section, const char* field,
                         const nlohmann::json& value, const std::string& text) {
    EditedModel model(name);
    model.config[section][field] = value;
    if (section == std::string("bswa")) {
      for (auto& type : model.config["layer_types"]) {
        if (type == "full_attention") type = "block_sliding_attention";
      }
    }
    model.ExpectError(absl::StatusCode::kInvalidArgument,
                      absl::StrCat(section, ".", field, ": ", text));
  };
  for (const char* flag :
       {"normalize_centroids", "min_state_size", "counts_for_rates_only", "delta_rule"}) {
    expect("sw-ovq", "ovq", flag, 1, "expected true or false");
  }
  expect("sw-ovq-gqa", "ovq", "delta_rule", true,
         "expected false, as keys of shared heads have no one beta: num_key_value_heads is 2");
  expect("sw-full", "bswa", "chunk_len", 0, "expected an integer in [1, ");
  expect("sw-full", "bswa", "n_bswa_chunks", 0, "expected an integer in [1, 256], got 0");
  expect("sw-full", "bswa", "sink_len", -1, "expected an integer in [0, ");
  expect("sw-full", "bswa", "window", 3, "unknown field");
  ExpectRefused("sw-ovq-gqa",
                {{"value_residual", "gated_after_shift"},
                 {"value_residual_layer", 0},
                 {"value_gate_rank", 4}},
                "value_residual: a gate after the token shift needs as many channels of values as "
                "hidden_size = 64, got 32");
}

// Values of a layer that is missing, comes later or has none would end the process at the first
// token.
TEST(LanguageModel, NamesAValueResidualWithoutValues) {
  constexpr char kLinear[] = "linear";
  ExpectRefused("sw-ovq", {{"value_residual", kLinear}},
                "value_residual_layer: expected an integer in [0, 65536], but it is missing");
  ExpectRefused("sw-ovq", {{"value_residual", kLinear}, {"value_residual_layer", 1}},
                "value_residual_layer: expected an attention layer in [0, 0], as layer 0 mixes its "
                "values in, got 1");
  ExpectRefused("gdn-ovq", {{"value_residual", kLinear}, {"value_residual_layer", 0}},
                "value_residual_layer: expected an attention layer in [0, 1], as layer 1 mixes its "
                "values in, got 0");
  EditedModel first("sw-ovq");
  first.config["value_residual"] = kLinear;
  first.config["value_residual_layer"] = 0;
  for (int i = 0; i < 4; ++i) {
    first.tensors[absl::StrCat("model.layers.", i, ".self_attn.value_residual")] = {
        {1}, std::string(sizeof(float), '\0')};
  }
  EXPECT_EQ(ComputeLogits(first), ComputeLogits(EditedModel("sw-ovq")));
}

// A block window that no token has left yet is full attention.
TEST(LanguageModel, ABlockWindowIsFullAttentionUntilItIsFull) {
  EditedModel full("sw-full"), window("sw-full");
  for (auto& type : window.config["layer_types"]) {
    if (type == "full_attention") type = "block_sliding_attention";
  }
  window.config["rope"] = full.config["rope"] = "none";
  window.config["bswa"] = {{"chunk_len", 2}, {"n_bswa_chunks", 3}, {"sink_len", 0}};
  const auto logits = [](const EditedModel& model) {
    return Logits(*model.Load().value(), *model.context);
  };
  EXPECT_EQ(logits(window), logits(full));
  window.config["bswa"]["n_bswa_chunks"] = 1;
  EXPECT_NE(logits(window), logits(full));
}

// A slot starts from the direction of its initial vector, so that may not be zero.
TEST(LanguageModel, NamesAnInitialSlotWithoutALength) {
  EditedModel model("sw-lattice");  // [3, 16, 20]
  std::string& rows = model.tensors["model.layers.3.self_attn.initial_state"].second;
  const size_t row = 20 * sizeof(float);
  std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>((2 * 16 + 5) * row), row, '\0');
  model.ExpectError(absl::StatusCode::kInvalidArgument,
                    "self_attn.initial_state: expected rows that have a length, row 5 of head 2 is "
                    "zero");
}

TEST(LanguageModel, ServersLimitLowersTheDefaultCap) {
  ModelOptions options;
  options.limits.max_slot_cap = 16;
  const auto lowered = EditedModel("sw-ovq").Load(options);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ((*lowered)->layout().default_slot_cap(), 16);
  const auto own = EditedModel("sw-ovq").Load();
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)->layout().default_slot_cap(), 24);
  EXPECT_EQ((*own)->fingerprint(), (*lowered)->fingerprint());
}

TEST(LanguageModel, TiedHeadReadsTheEmbedding) {
  EditedModel untied("sw-ovq");
  untied.tensors["lm_head.weight"] = untied.tensors["model.embed_tokens.weight"];
  EditedModel tied("sw-ovq");
  tied.tensors.erase("lm_head.weight");
  tied.config["tie_word_embeddings"] = true;
  const auto a = untied.Load();
  const auto b = tied.Load();
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_EQ(Logits(**a, *untied.context), Logits(**b, *tied.context));
  EXPECT_NE((*a)->fingerprint(), (*b)->fingerprint());
}

TEST(LanguageModel, LayersMayHaveNoFeedForward) {
  EditedModel zeroed("sw-ovq");
  EditedModel without("sw-ovq");
  const std::string prefix = "model.layers.1.";
  for (const char* leaf : {"post_attention_layernorm.weight", "mlp.gate_proj.weight",
                           "mlp.up_proj.weight", "mlp.down_proj.weight"}) {
    without.tensors.erase(prefix + leaf);
  }
  without.config["intermediate_size"] = {96, 0, 96, 96};
  std::string& down = zeroed.tensors[prefix + "mlp.down_proj.weight"].second;
  down.assign(down.size(), '\0');
  const auto a = zeroed.Load();
  const auto b = without.Load();
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_EQ(Logits(**a, *zeroed.context), Logits(**b, *without.context));
}

float* Floats(EditedModel& model, const std::string& tensor) {
  return reinterpret_cast<float*>(model.tensors.at(tensor).second.data());
}

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << i;
}

constexpr int64_t kVocab = 101, kWidth = 64;  // sizes of sw-ovq

TEST(LanguageModel, BiasOfTheHeadIsScaledWithTheLogits) {
  for (bool tied : {false, true}) {
    EditedModel model("sw-ovq");
    model.config["tie_word_embeddings"] = tied;
    if (tied) model.tensors.erase("lm_head.weight");
    std::vector<float> expected = ComputeLogits(model);
    std::vector<float> bias(kVocab);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.25f * static_cast<float>(i) - 10;
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = 0.5f * (expected[i] + bias[i % kVocab]);
    model.config["logit_scale"] = 0.5;
    model.config["lm_head_bias"] = true;
    model.ExpectError(absl::StatusCode::kNotFound, "'lm_head.bias' is missing");
    model.tensors["lm_head.bias"] = {{kVocab}, Bytes(bias)};
    EXPECT_EQ(ComputeLogits(model), expected);
  }
}

// A bias in the final norm shifts the logits; one before a feed-forward or a mixer changes them.
TEST(LanguageModel, NormsMayHaveABias) {
  EditedModel model("sw-ovq");
  const std::vector<float> plain = ComputeLogits(model);
  model.config["norm_bias"] = true;
  std::vector<std::string> norms = {"model.norm"};
  for (int i = 0; i < 4; ++i) {
    for (const char* leaf : {"input_layernorm", "post_attention_layernorm"}) {
      norms.push_back(absl::StrCat("model.layers.", i, ".", leaf));
    }
  }
  for (const std::string& norm : norms) {
    model.ExpectError(absl::StatusCode::kNotFound, norm + ".bias' is missing");
    model.tensors[norm + ".bias"] = {{kWidth}, Bytes(std::vector<float>(kWidth, 0))};
  }
  EXPECT_EQ(ComputeLogits(model), plain);
  for (const std::string& norm : norms) {
    Floats(model, norm + ".bias")[3] = 2;
    const std::vector<float> biased = ComputeLogits(model);
    EXPECT_NE(biased, plain) << norm;
    if (norm == "model.norm") {
      std::vector<float> expected = plain;
      const float* head = Floats(model, "lm_head.weight");
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += 2 * head[i % kVocab * kWidth + 3];
      ExpectNear(biased, expected, 1e-5f);
    }
    Floats(model, norm + ".bias")[3] = 0;
  }
}

// Without the final norm, logits are linear in the layers' output; a norm of weight 1 divides all
// logits of a token by one number.
TEST(LanguageModel, TheHeadMayReadTheResidualStream) {
  EditedModel normed("sw-ovq");
  std::fill_n(Floats(normed, "model.norm.weight"), kWidth, 1.0f);
  EditedModel bare = normed.Copy();
  bare.config["final_norm"] = false;
  bare.ExpectError(absl::StatusCode::kInvalidArgument, "'model.norm.weight'");
  bare.tensors.erase("model.norm.weight");
  const std::vector<float> a = ComputeLogits(normed), b = ComputeLogits(bare);
  EXPECT_NE(a, b);
  for (size_t row = 0; row < a.size(); row += kVocab) {
    double ab = 0, aa = 0;
    for (size_t i = row; i < row + kVocab; ++i)
      ab += double{a[i]} * b[i], aa += double{a[i]} * a[i];
    const double ratio = ab / aa;
    for (size_t i = row; i < row + kVocab; ++i) EXPECT_NEAR(b[i], ratio * a[i], 1e-4 * ratio) << i;
  }
  ModelOptions bf16;
  bf16.compute_dtype = kernels::DType::kBF16;
  const auto rounded = bare.Load(bf16);
  ASSERT_TRUE(rounded.ok()) << rounded.status();
  // Logits of size 10 from bfloat16 factors through four layers.
  ExpectNear(Logits(**rounded, *bare.context), b, 0.5f);
}

// With token 1 + t at position t, S(t) can as well be added to the embedding's rows.
TEST(LanguageModel, PositionsAreAddedToTheEmbedding) {
  EditedModel model("sw-ovq"), in_rows("sw-ovq");
  constexpr float kScale = 0.7f;
  model.config["pe_abs"] = true;
  model.config["pe_lam"] = 50;
  model.ExpectError(absl::StatusCode::kNotFound, "'model.embed_positions.scale' is missing");
  model.tensors["model.embed_positions.scale"] = {nlohmann::json::array(), Bytes({kScale})};
  float* rows = Floats(in_rows, "model.embed_tokens.weight");
  for (int t = 0; t < 5; ++t) {
    for (int i = 0; i < kWidth / 2; ++i) {
      const double angle = t * std::pow(50.0, -2.0 * i / kWidth);
      float* row = rows + (1 + t) * kWidth;
      row[i] += kScale * static_cast<float>(std::sin(angle));
      row[kWidth / 2 + i] += kScale * static_cast<float>(std::cos(angle));
    }
  }
  // Rounding of the sines and cosines, through four layers.
  ExpectNear(ComputeLogits(model), ComputeLogits(in_rows), 1e-5f);
}

TEST(LanguageModel, FingerprintSeesTheConfig) {
  EditedModel model("sw-ovq");
  const std::string before = (*model.Load())->fingerprint();
  EXPECT_EQ((*model.Load())->fingerprint(), before);
  model.config["sliding_window"] = 17;
  EXPECT_NE((*model.Load())->fingerprint(), before);
}

// Qwen3.5's file has parts of a tensor for several of the decoder's.
TEST(LanguageModel, UnalignedAndSkippedTensorsChangeNothing) {
  for (const char* name : {"sw-ovq", "published/qwen3_5-text"}) {
    EditedModel model(name);
    const std::vector<float> logits = ComputeLogits(model);
    const std::string fingerprint = (*model.Load())->fingerprint();
    if (std::string(name) != "sw-ovq") {
      model.others = {{"mtp.steps", "I64"}, {"model.visual.scale", "F8_E8M0"}};
    }
    for (model.shift = 1; model.shift < 4; ++model.shift) {
      EXPECT_EQ(ComputeLogits(model), logits) << name << " " << model.shift;
      if (model.others.empty()) {
        EXPECT_EQ((*model.Load())->fingerprint(), fingerprint);
      }
    }
  }
}

TEST(LanguageModel, LogitsOfChosenTokensOnly) {
  const auto context = BoundContext(kernels::Device::kCpu);
  const auto model = LoadModel(LoadGolden("sw-ovq").folder, *context);
  const int64_t vocab = model->config().vocab_size;
  const std::vector<float> all = Logits(*model, *context);
  const kernels::Buffer memory = NewState(*model, *context);
  Batch batch;
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  batch.Add(tokens, 0, 24, memory.as<std::byte>(), 0);
  batch.logits_indices = {0, 2, 3};
  const std::vector<float> some = Forward(*model, *context, batch);
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> got(some.begin() + i * vocab, some.begin() + (i + 1) * vocab);
    const auto row = all.begin() + batch.logits_indices[i] * vocab;
    EXPECT_EQ(got, std::vector<float>(row, row + vocab)) << i;
  }
  batch.logits_indices.clear();
  batch.start_pos = {5};
  EXPECT_TRUE(Forward(*model, *context, batch).empty());
}

TEST(LanguageModel, SteadyBatchesUseNoMoreScratch) {
  const auto context = BoundContext(kernels::Device::kCpu);
  const auto model = LoadModel(LoadGolden("sw-ovq").folder, *context);
  Session session(*model, *context, std::vector<int32_t>(200, 7), 24);
  session.Feed(20);
  const size_t before = context->scratch().capacity_bytes();
  while (session.remaining() > 0) session.Feed(1);
  EXPECT_EQ(context->scratch().capacity_bytes(), before);
  EXPECT_EQ(context->scratch().mark(), 0u);
}

}  // namespace
}  // namespace ovq::model::test
