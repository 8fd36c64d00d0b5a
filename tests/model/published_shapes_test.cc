// Session sizes of published hybrids in their published shapes, and a folder in the hub's layout,
// with shards and 16-bit weights.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/load_config.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

struct PublishedShape {
  const char* name;
  const char* fixture;  // fixture with its other fields
  nlohmann::json fields;
  size_t fixed_bytes, bytes_per_token;
};

nlohmann::json GraniteLayers(int n_layers, const std::vector<int>& attention) {
  std::vector<std::string> types(static_cast<size_t>(n_layers), "mamba");
  for (int i : attention) types[static_cast<size_t>(i)] = "attention";
  return types;
}

// Recurrent matrices and convolution inputs are float32, keys and values bfloat16. A window of W
// tokens takes the blocks of 64 it reaches into and the query's own.
std::vector<PublishedShape> PublishedShapes() {
  return {
      {"granite-4.0-h-350m",
       "published/granitemoehybrid-dense",
       {{"hidden_size", 768},
        {"num_hidden_layers", 32},
        {"layer_types", GraniteLayers(32, {10, 13, 17, 27})},
        {"num_attention_heads", 12},
        {"num_key_value_heads", 4},
        {"mamba_n_heads", 48},
        {"mamba_d_head", 32},
        {"mamba_d_state", 128}},
       28 * sizeof(float) * (48 * 32 * 128 + 3 * (2 * 768 + 2 * 128)),
       4 * 2 * 4 * 64 * sizeof(kernels::BF16)},
      {"granite-4.0-h-1b",
       "published/granitemoehybrid-dense",
       {{"hidden_size", 1536},
        {"num_hidden_layers", 40},
        {"layer_types", GraniteLayers(40, {5, 15, 25, 35})},
        {"num_attention_heads", 12},
        {"num_key_value_heads", 4},
        {"mamba_n_heads", 48},
        {"mamba_d_head", 64},
        {"mamba_d_state", 128}},
       36 * sizeof(float) * (48 * 64 * 128 + 3 * (2 * 1536 + 2 * 128)),
       4 * 2 * 4 * 128 * sizeof(kernels::BF16)},
      {"olmo-hybrid-7b",
       "published/olmo_hybrid-nope",
       {{"hidden_size", 3840},
        {"num_hidden_layers", 32},
        {"layer_types", nullptr},
        {"num_attention_heads", 30},
        {"num_key_value_heads", 30},
        {"linear_num_key_heads", 30},
        {"linear_num_value_heads", 30},
        {"linear_key_head_dim", 96},
        {"linear_value_head_dim", 192}},
       24 * sizeof(float) * (30 * 96 * 192 + 3 * 30 * (2 * 96 + 192)),
       8 * 2 * 30 * 128 * sizeof(kernels::BF16)},
      {"c4ai-command-r7b",
       "published/cohere2-sw",
       {{"hidden_size", 4096},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"head_dim", 128},
        {"sliding_window", 4096}},
       24 * 65 * 64 * 2 * 8 * 128 * sizeof(kernels::BF16),
       8 * 2 * 8 * 128 * sizeof(kernels::BF16)},
      {"qwen3.5-0.8b",
       "published/qwen3_5-text",
       {{"hidden_size", 1024},
        {"num_hidden_layers", 24},
        {"layer_types", nullptr},
        {"num_attention_heads", 8},
        {"num_key_value_heads", 2},
        {"head_dim", 256},
        {"linear_num_key_heads", 16},
        {"linear_num_value_heads", 16},
        {"linear_key_head_dim", 128},
        {"linear_value_head_dim", 128}},
       18 * sizeof(float) * (16 * 128 * 128 + 3 * 3 * 16 * 128),
       6 * 2 * 2 * 256 * sizeof(kernels::BF16)},
      {"muse-glimmer-30b",
       "published/muse_glimmer-hub",
       {{"text_config",
         {{"hidden_size", 6656},
          {"num_hidden_layers", 52},
          {"layer_types", nullptr},
          {"layer_rope_theta", nullptr},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 2},
          {"head_dim", 128},
          {"sliding_window", 2048}}}},
       39 * 33 * 64 * 2 * 2 * 128 * sizeof(kernels::BF16),
       13 * 2 * 2 * 128 * sizeof(kernels::BF16)},
      {"llama-3.2-1b",
       "published/llama-scaled",
       {{"hidden_size", 2048},
        {"num_hidden_layers", 16},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"head_dim", 64}},
       0,
       16 * 2 * 8 * 64 * sizeof(kernels::BF16)},
      {"mistral-7b-v0.1",
       "published/mistral-window",
       {{"hidden_size", 4096},
        {"num_hidden_layers", 32},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 8},
        {"max_position_embeddings", 32768},
        {"sliding_window", 4096}},
       32 * 65 * 64 * 2 * 8 * 128 * sizeof(kernels::BF16),
       0},
      {"gemma-3-1b",
       "published/gemma3_text-1b",
       {{"hidden_size", 1152},
        {"num_hidden_layers", 26},
        {"head_dim", 256},
        {"sliding_window", 512}},
       22 * 9 * 64 * 2 * 256 * sizeof(kernels::BF16),
       4 * 2 * 256 * sizeof(kernels::BF16)},
      {"olmo-3-7b",
       "published/olmo3-yarn",
       {{"hidden_size", 4096},
        {"num_hidden_layers", 32},
        {"layer_types", nullptr},
        {"num_attention_heads", 32},
        {"num_key_value_heads", 32},
        {"sliding_window", 4096}},
       24 * 65 * 64 * 2 * 32 * 128 * sizeof(kernels::BF16),
       8 * 2 * 32 * 128 * sizeof(kernels::BF16)},
  };
}

TEST(PublishedShapes, StatesAreKnownFromTheConfigAlone) {
  for (const PublishedShape& shape : PublishedShapes()) {
    EditedModel model(shape.fixture);
    model.config.merge_patch(shape.fields);
    const TempFolder folder;
    folder.Write("config.json", model.config.dump());
    const auto config = LoadConfig(folder.path());
    ASSERT_TRUE(config.ok()) << shape.name << config.status();
    const auto layout =
        PlanStateLayout(*config, kernels::DType::kBF16, {.max_unbounded_tokens = 1 << 20},
                        kernels::Device::kCpu, kernels::kHostPageBytes);
    ASSERT_TRUE(layout.ok()) << shape.name << layout.status();
    for (int64_t tokens : {int64_t{1} << 15, int64_t{1} << 17, int64_t{1} << 20}) {
      EXPECT_EQ(layout->live_bytes_at(tokens, 0),
                shape.fixed_bytes + static_cast<size_t>(tokens) * shape.bytes_per_token)
          << shape.name << " after " << tokens;
    }
  }
}

// Half of the tensors in bfloat16 and half in binary16, a shard each; binary16 only for numbers
// that it represents exactly. The same numbers in float32 are the same model.
TEST(PublishedShapes, ShardsOfNarrowWeightsAreTheSameModel) {
  EditedModel wide("published/qwen3_5-tied");
  nlohmann::json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::json()}};
  nlohmann::json headers[2] = {nlohmann::json::object(), nlohmann::json::object()};
  std::string data[2];
  int at = 0;
  for (auto& [name, tensor] : wide.tensors) {
    const int shard = at++ % 2;
    std::vector<float> values(tensor.second.size() / sizeof(float));
    std::memcpy(values.data(), tensor.second.data(), tensor.second.size());
    std::string narrow;
    for (float& value : values) {
      const kernels::BF16 rounded = kernels::RoundToBF16(value);
      uint16_t bits = rounded.bits;
      value = kernels::ToFloat(rounded);
      // A bfloat16 number that binary16 represents exactly: 1 + 5 + 10 bits.
      const auto exponent = static_cast<int>(bits >> 7 & 0xff) - 127 + 15;
      if (shard == 1 && (exponent < 1 || exponent > 30)) value = 0, bits = 0;
      if (shard == 1 && bits != 0) {
        bits = static_cast<uint16_t>((bits & 0x8000) | exponent << 10 | (bits & 0x7f) << 3);
      }
      narrow.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    }
    std::memcpy(tensor.second.data(), values.data(), tensor.second.size());
    const std::string file = absl::StrCat("model-0000", shard + 1, "-of-00002.safetensors");
    index["weight_map"][name] = file;
    headers[shard][name] = {
        {"dtype", shard == 0 ? "BF16" : "F16"},
        {"shape", tensor.first},
        {"data_offsets", {data[shard].size(), data[shard].size() + narrow.size()}}};
    data[shard] += narrow;
  }
  const TempFolder folder;
  folder.Write("config.json", wide.config.dump());
  folder.Write("model.safetensors.index.json", index.dump());
  for (int shard : {0, 1}) {
    std::string header = headers[shard].dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    folder.Write(absl::StrCat("model-0000", shard + 1, "-of-00002.safetensors"),
                 SafetensorsBytes(header, data[shard]));
  }
  const auto sharded = LanguageModel::Load(folder.path(), {}, *wide.context);
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  const auto single = wide.Load();
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_EQ(Logits(**sharded, *wide.context), Logits(**single, *wide.context));
}

}  // namespace
}  // namespace ovq::model::test
