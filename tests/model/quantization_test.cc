// Quantized weights: matrices that the authors' code has packed (tests/golden/quantized), a whole
// model in every form, and what is refused.
#include "model/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "model/inspect/inspect.h"
#include "tests/folders.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

using Json = nlohmann::json;
constexpr char kLlama[] = "published/llama-smol";

QuantizationSpec Read(const Json& object) {
  QuantizationSpec spec;
  const absl::Status status = ReadQuantization(object, spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

// Expects the values that the authors' code reads from every matrix of a folder. Theirs are a
// product in float32 as ours are, so the bits are equal.
void ExpectGolden(const char* name, const Json& config) {
  const std::string folder = absl::StrCat(GoldenFolder(), "/quantized/", name);
  Weights weights;
  ASSERT_TRUE(Weights::Open(folder, weights).ok());
  const absl::Status status = AddQuantized(Read(config), weights);
  ASSERT_TRUE(status.ok()) << status;
  const auto expected = OpenSafetensors(folder + "/expected.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_FALSE(expected->tensors().empty());
  for (const auto& [matrix, stored] : expected->tensors()) {
    const bool is_whole_name = weights.made().contains(matrix);  // of experts in one tensor
    const auto made = weights.GetTensor(is_whole_name ? matrix : matrix + ".weight", stored.shape);
    ASSERT_TRUE(made.ok()) << made.status();
    const std::string bytes(made->as<const char>(), made->bytes());
    EXPECT_EQ(bytes, Text(stored.bytes)) << matrix;
  }
  const absl::Status unused = weights.CheckAllUsed([](std::string_view) { return false; });
  EXPECT_TRUE(unused.ok()) << unused;
}

TEST(Quantization, ReadsWhatTheAuthorsPacked) {
  ExpectGolden("awq", {{"quant_method", "awq"}, {"bits", 4}, {"version", "gemm"}});
  ExpectGolden("gptq4", {{"quant_method", "gptq"}, {"bits", 4}, {"desc_act", true}});
  ExpectGolden("gptq8", {{"quant_method", "gptq"}, {"bits", 8}});
  ExpectGolden("compressed-tensors", {{"quant_method", "compressed-tensors"}});
  ExpectGolden("fp8", {{"quant_method", "fp8"}, {"weight_block_size", {12, 20}}});
  ExpectGolden("fp8-experts", {{"quant_method", "fp8"}, {"weight_block_size", {8, 32}}});
  ExpectGolden("fp8-experts", {{"quant_method", "compressed-tensors"}});
  ExpectGolden("fp8-experts", {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}});
}

TEST(Quantization, GptqsSecondFormatStoresZeroPointsAsTheyAre) {
  const std::string folder = GoldenFolder() + "/quantized/gptq8";
  std::vector<float> first[2];
  for (const bool is_second : {false, true}) {
    Weights weights;
    ASSERT_TRUE(Weights::Open(folder, weights).ok());
    ASSERT_TRUE(AddQuantized(Read({{"quant_method", "gptq"},
                                   {"bits", 8},
                                   {"checkpoint_format", is_second ? "gptq_v2" : "gptq"}}),
                             weights)
                    .ok());
    const auto made = weights.GetTensor("gptq8.weight", {32, 96});
    ASSERT_TRUE(made.ok()) << made.status();
    first[is_second].assign(made->as<const float>(), made->as<const float>() + 32 * 96);
  }
  const auto scales = OpenSafetensors(folder + "/model.safetensors");
  const auto half = Text(scales->tensors().at("gptq8.scales").bytes);
  uint16_t bits;
  std::memcpy(&bits, half.data(), sizeof(bits));
  EXPECT_NEAR(first[1][0] - first[0][0], kernels::HalfToFloat(bits), 1e-6);  // z is less by one
}

// A zero point of 0 is less by one modulo 2^bits: the largest number that there is.
TEST(Quantization, GptqsZeroPointsMayBeZero) {
  for (const int bits : {4, 8}) {
    const int n = 32 / bits;
    const std::string row = bits == 4 ? "\x10\x32\x54\x76" : std::string("\0\1\2\3", 4);
    std::string rows;
    for (int i = 0; i < n; ++i) rows += row;
    EditedModel model(kLlama);
    model.tensors.clear();
    model.tensors["a.scales"] = {{1, n}, Bytes(std::vector<float>(static_cast<size_t>(n), 1))};
    model.typed["a.qweight"] = {"I32", {1, n}, rows};
    model.typed["a.qzeros"] = {"I32", {1, 1}, bits == 4 ? "\x7f\x77\x77\x77" : "\xff\x7f\x7f\x7f"};
    const TempFolder folder;
    model.Write(folder);
    Weights weights;
    ASSERT_TRUE(Weights::Open(folder.path(), weights).ok());
    ASSERT_TRUE(AddQuantized(Read({{"quant_method", "gptq"}, {"bits", bits}}), weights).ok());
    const auto made = weights.GetTensor("a.weight", {n, n});
    ASSERT_TRUE(made.ok()) << made.status();
    const std::vector<float> values(made->as<const float>(), made->as<const float>() + n * n);
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(values[i], i) << bits;
      EXPECT_EQ(values[n + i], i - (1 << (bits - 1))) << bits;
    }
  }
}

// compressed-tensors writes a list of groups whose numbers were never set as -1.
TEST(Quantization, ColumnsWhoseGroupsAreUnsetLieInTheirOrder) {
  const auto values = [](const std::string& groups) {
    EditedModel model(kLlama);
    model.tensors.clear();
    model.tensors["a.weight_scale"] = {{1, 2}, Bytes({1, 2})};
    model.typed["a.weight_packed"] = {"I32", {1, 2}, std::string(8, '\x81')};
    model.typed["a.weight_shape"] = {
        "I64", {2}, std::string("\1\0\0\0\0\0\0\0\10\0\0\0\0\0\0\0", 16)};
    model.typed["a.weight_g_idx"] = {"I32", {8}, groups};
    const TempFolder folder;
    model.Write(folder);
    Weights weights;
    EXPECT_TRUE(Weights::Open(folder.path(), weights).ok());
    const absl::Status status =
        AddQuantized(Read({{"quant_method", "compressed-tensors"}}), weights);
    if (!status.ok()) return Message(status);
    const auto made = weights.GetTensor("a.weight", {1, 8});
    EXPECT_TRUE(made.ok()) << made.status();
    std::string text;
    for (int i = 0; i < 8; ++i) absl::StrAppend(&text, made->as<const float>()[i]);
    return text;
  };
  const std::string zero(4, '\0'), unset(4, '\xff'), one("\1\0\0\0", 4);
  EXPECT_EQ(values(std::string(32, '\xff')), "11112222");
  EXPECT_EQ(values(zero + one + zero + one + zero + one + zero + one), "12121212");
  EXPECT_EQ(values(zero + one + zero + one + zero + one + zero + unset), "11112222");
  EXPECT_THAT(values(std::string(32, '\xfe')), ::testing::HasSubstr("expected groups in [0, 1]"));
}

float AbsMax(const std::vector<float>& values) {
  float most = 1e-6f;
  for (const float v : values) most = std::max(most, std::abs(v));
  return most;
}

// One byte for each element and one scale for the matrix.
std::vector<float> QuantizeToBytes(EditedModel& model, const std::string& base, int rows,
                                   int columns, const std::vector<float>& values) {
  const float scale = AbsMax(values) / 127;
  std::string bytes;
  std::vector<float> kept;
  for (const float v : values) {
    const float q = std::nearbyint(v / scale);
    bytes += static_cast<char>(static_cast<int8_t>(q));
    kept.push_back(q * scale);
  }
  model.typed[base + "weight"] = {"I8", {rows, columns}, bytes};
  model.tensors.erase(base + "weight");
  model.tensors[base + "weight_scale"] = {{1}, Bytes({scale})};
  return kept;
}

// A model of bytes computes what one with their values in float32 computes, to the bit.
TEST(Quantization, AModelOfBytesIsTheModelOfTheirValues) {
  EditedModel quantized(kLlama), widened(kLlama);
  quantized.config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                             {"format", "int-quantized"}};
  const auto file = OpenSafetensors(LoadGolden(kLlama).folder + "/model.safetensors");
  int count = 0;
  for (const auto& [name, stored] : file->tensors()) {
    if (!name.ends_with("_proj.weight")) continue;
    std::vector<float> values(static_cast<size_t>(stored.shape.elements()));
    std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
    const std::string base = name.substr(0, name.size() - 6);
    widened.tensors[name].second =
        Bytes(QuantizeToBytes(quantized, base, static_cast<int>(stored.shape[0]),
                              static_cast<int>(stored.shape[1]), values));
    ++count;
  }
  EXPECT_EQ(count, 28);
  ModelOptions options = kSmallSessions;
  options.compute_dtype = kernels::DType::kF32;
  const auto of_values = widened.Load(options);
  ASSERT_TRUE(of_values.ok()) << of_values.status();
  const std::vector<float> expected = Logits(**of_values, *widened.context);
  const auto of_bytes = quantized.Load(options);
  ASSERT_TRUE(of_bytes.ok()) << of_bytes.status();
  EXPECT_EQ(Logits(**of_bytes, *quantized.context), expected);
  EXPECT_EQ((*of_bytes)->parameters(), (*of_values)->parameters());  // scales do not count
  // Without a word from the caller a quantized model computes in bfloat16.
  EXPECT_EQ((*quantized.Load())->compute_dtype(), kernels::DType::kBF16);
  const TempFolder folder;
  quantized.Write(folder);
  InspectOptions inspect;
  inspect.folder = folder.path();
  const nlohmann::ordered_json report = InspectFolder(inspect);
  EXPECT_EQ(report["problems"].size(), 0u) << report["problems"];
  const nlohmann::ordered_json& loss = report["quantization"];
  EXPECT_EQ(loss["method"], "compressed-tensors");
  EXPECT_EQ(loss["matrices"], 28);
  // bfloat16 rounds to 8 bits, by up to 2^-9 of a value and 2^-10 or so in the mean.
  EXPECT_GT(loss["bf16_error"], 5e-4);
  EXPECT_LT(loss["bf16_error"], 1.0 / 512);
  // Rows have other largest values than the matrix, so their int8 is another one.
  EXPECT_GT(loss["int8_error"], loss["bf16_error"]);
  EXPECT_LT(loss["int8_error"], 2e-2);
  EXPECT_THAT(ReportText(report),
              ::testing::HasSubstr("quantized   28 matrices (compressed-tensors)"));
}

// Experts in one tensor with a scale for each, and a tensor for each expert, compute what their
// values in float32 compute.
TEST(Quantization, ExpertsMayBeStackedOrNot) {
  constexpr char kExperts[] = "published/qwen3_5_moe-hub";
  EditedModel widened(kExperts), stacked(kExperts), single(kExperts);
  for (EditedModel* model : {&stacked, &single}) {
    model->config["quantization_config"] = {{"quant_method", "compressed-tensors"}};
  }
  int count = 0;
  for (auto& [name, tensor] : widened.tensors) {
    const size_t at = name.find(".mlp.experts.");
    if (at == std::string::npos || !name.starts_with("model.language_model.layers.")) continue;
    const bool is_inner = name.ends_with("gate_up_proj");
    const int n = tensor.first[0], rows = tensor.first[1], columns = tensor.first[2];
    std::vector<float> values(tensor.second.size() / sizeof(float)), kept, scales;
    std::memcpy(values.data(), tensor.second.data(), tensor.second.size());
    std::string bytes;
    const std::string experts = name.substr(0, at) + ".mlp.experts.";
    const auto size = static_cast<int64_t>(rows) * columns;
    for (int e = 0; e < n; ++e) {
      const std::vector<float> of_one(values.begin() + e * size, values.begin() + (e + 1) * size);
      const std::string base = absl::StrCat(experts, e, is_inner ? ".gate_up." : ".down_proj.");
      const std::vector<float> rounded = QuantizeToBytes(single, base, rows, columns, of_one);
      kept.insert(kept.end(), rounded.begin(), rounded.end());
      scales.push_back(AbsMax(of_one) / 127);
      TypedTensor q = single.typed.at(base + "weight");
      bytes += q.bytes;
      if (!is_inner) continue;
      const auto scale = single.tensors.extract(base + "weight_scale").mapped();
      single.typed.erase(base + "weight");
      q.shape[0] = rows / 2;
      for (const std::string part : {"gate_proj.", "up_proj."}) {
        const std::string leaf = absl::StrCat(experts, e, ".", part, "weight");
        const size_t half = q.bytes.size() / 2;
        single.typed[leaf] = {
            "I8", q.shape,
            bytes.substr(bytes.size() - q.bytes.size() + (part[0] == 'u' ? half : 0), half)};
        single.tensors[leaf + "_scale"] = scale;
      }
    }
    stacked.typed[name] = {"I8", {n, rows, columns}, bytes};
    stacked.tensors.erase(name);
    stacked.tensors[name + "_scale"] = {{n, 1, 1}, Bytes(scales)};
    single.tensors.erase(name);
    tensor.second = Bytes(kept);
    ++count;
  }
  EXPECT_EQ(count, 8);
  ModelOptions options = kSmallSessions;
  options.compute_dtype = kernels::DType::kF32;
  const auto logits = [&](const EditedModel& model) {
    const auto loaded = model.Load(options);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? Logits(**loaded, *model.context) : std::vector<float>();
  };
  const std::vector<float> expected = logits(widened);
  EXPECT_EQ(logits(stacked), expected);
  EXPECT_EQ(logits(single), expected);
  const std::string name = "model.language_model.layers.1.mlp.experts.down_proj";
  stacked.tensors[name + "_scale"].first = {2, 3, 1};
  stacked.ExpectError(absl::StatusCode::kInvalidArgument,
                      name + "_scale: expected one scale or a grid of equal blocks of [6, 40, 16]");
}

void ExpectRefusedConfig(const Json& config, const std::string& text) {
  ExpectRefused(kLlama, {{"quantization_config", config}}, text);
}

TEST(Quantization, RefusesFormsByName) {
  ExpectRefusedConfig(3, "quantization_config: expected an object");
  ExpectRefusedConfig({{"quant_method", "bitsandbytes"}},
                      "quantization_config.quant_method: expected one of fp8, compressed-tensors, "
                      "awq, gptq, modelopt, got \"bitsandbytes\"");
  ExpectRefusedConfig({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}},
                      "quantization_config.quant_algo: expected one of FP8, got \"NVFP4\"");
  ExpectRefusedConfig({{"quant_method", "fp8"}, {"fmt", "e5m2"}},
                      "quantization_config.fmt: expected one of e4m3, got \"e5m2\"");
  ExpectRefusedConfig({{"quant_method", "fp8"}, {"weight_block_size", {128}}},
                      "quantization_config.weight_block_size: expected two sizes");
  ExpectRefusedConfig({{"quant_method", "awq"}, {"bits", 8}},
                      "quantization_config.bits: expected 4, got 8");
  ExpectRefusedConfig({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}},
                      "quantization_config.version: expected one of gemm, got \"gemv\"");
  ExpectRefusedConfig({{"quant_method", "gptq"}, {"bits", 3}},
                      "quantization_config.bits: expected 4 or 8, got 3");
  ExpectRefusedConfig({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}},
                      "quantization_config.checkpoint_format: expected one of gptq, gptq_v2");
  ExpectRefusedConfig({{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}},
                      "quantization_config.format: expected one of dense, int-quantized");
  ExpectRefusedConfig(
      {{"quant_method", "compressed-tensors"},
       {"config_groups", {{"group_0", {{"weights", {{"block_structure", {0, 1}}}}}}}}},
      "quantization_config.config_groups.group_0.weights.block_structure: expected two sizes");
  ExpectRefusedConfig({{"quant_method", "compressed-tensors"},
                       {"sparsity_config", {{"format", "sparse-24-bitmask"}}}},
                      "quantization_config.sparsity_config.format: expected \"dense\"");
  ExpectRefused(kLlama, {{"quantization", {{"bits", 4}}}}, "quantization: expected null");
}

// A damaged form of one matrix, and the error that names it.
void ExpectBadTensors(const Json& config, const std::map<std::string, TypedTensor>& tensors,
                      const std::string& text) {
  EditedModel model(kLlama);
  model.config["quantization_config"] = config;
  const std::string base = "model.layers.1.mlp.up_proj.";
  model.tensors.erase(base + "weight");
  for (const auto& [leaf, tensor] : tensors) model.typed[base + leaf] = tensor;
  model.ExpectError(absl::StatusCode::kInvalidArgument,
                    absl::StrCat("model.safetensors: ", base, text));
}

TEST(Quantization, NamesTheTensorThatIsWrong) {
  const auto zeros = [](const char* dtype, std::vector<int> shape, int size) {
    int n = size;
    for (const int d : shape) n *= d;
    return TypedTensor{dtype, shape, std::string(static_cast<size_t>(n), '\0')};
  };
  const Json awq = {{"quant_method", "awq"}, {"bits", 4}};
  const Json gptq = {{"quant_method", "gptq"}, {"bits", 4}};
  const Json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {32, 32}}};
  const Json packed = {{"quant_method", "compressed-tensors"}};
  ExpectBadTensors(fp8, {{"weight", zeros("F8_E4M3", {64, 54}, 1)}},
                   "weight_scale: is missing, the scale of F8_E4M3");
  ExpectBadTensors(
      fp8,
      {{"weight", zeros("F8_E4M3", {64, 54}, 1)}, {"weight_scale_inv", zeros("F32", {3, 3}, 4)}},
      "weight_scale_inv: expected one scale or a grid of equal blocks of [64, 54] or of blocks of "
      "32 x 32, got [3, 3]");
  ExpectBadTensors(
      fp8, {{"weight", {"F8_E4M3", {1, 1}, "\x7f"}}, {"weight_scale", zeros("F32", {1}, 4)}},
      "weight: expected [64, 54], got [1, 1]");
  ExpectBadTensors(awq, {{"qweight", zeros("F32", {54, 8}, 4)}}, "qweight: expected I32, got F32");
  ExpectBadTensors(awq, {{"qweight", zeros("I32", {54, 8}, 4)}},
                   "scales: expected [groups of 54 inputs, 64], got none");
  ExpectBadTensors(awq,
                   {{"qweight", zeros("I32", {54, 8}, 4)}, {"scales", zeros("F16", {2, 64}, 2)}},
                   "qzeros: is missing; expected [2, 8]");
  ExpectBadTensors(gptq,
                   {{"qweight", zeros("I32", {7, 64}, 4)},
                    {"scales", zeros("F16", {2, 64}, 2)},
                    {"qzeros", zeros("I32", {2, 8}, 4)},
                    {"g_idx", {"I32", {56}, std::string(224, '\x7f')}}},
                   "g_idx: expected groups in [0, 1], got 2139062143 at [0]");
  ExpectBadTensors(packed, {{"weight_packed", zeros("I32", {64, 7}, 4)}},
                   "weight_shape: is missing; expected [2]");
  ExpectBadTensors(packed,
                   {{"weight_packed", zeros("I32", {64, 7}, 4)},
                    {"weight_shape", {"I64", {2}, std::string(16, '\x7f')}}},
                   "weight_packed: expected 4 or 8 bits for each element of");
}

}  // namespace
}  // namespace ovq::model::test
