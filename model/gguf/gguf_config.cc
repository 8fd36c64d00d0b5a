#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "model/gguf/find_architecture.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr char kTable[] = "token_embd.weight";

// Keys without effect on what is computed.
constexpr std::string_view kIgnored[] = {"vocab_size", "expert_used_count",
                                         "rope.scaling.finetuned", "tensor_data_layout"};

// The type of most elements; blocks of integers are computed in bfloat16.
const char* DType(const GgufFile& file) {
  std::map<std::string_view, int64_t> elements;
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string_view type = tensor.type->is_float() ? tensor.type->name : "BF16";
    elements[type] += tensor.shape.elements();
  }
  const auto most =
      std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  if (most == elements.end() || most->first == "F32") return "float32";
  return most->first == "F16" ? "float16" : "bfloat16";
}

// Reads rope.scaling.* of the types that any architecture may have.
void ReadRope(const Architecture& architecture, ArchitectureKeys& keys, Json& config) {
  config["rope_theta"] = keys.FloatOr("rope.freq_base", architecture.rope_base);
  const std::string type = keys.StringOr("rope.scaling.type", "none");
  if (type == "none" || type == "longrope") return;  // the latter by its tensors
  if (type != "linear" && type != "yarn") {
    return keys.Fail("rope.scaling.type",
                     absl::StrCat("expected none, linear, yarn or longrope, got ", type));
  }
  Json& scaling = config["rope_scaling"] = {{"rope_type", type},
                                            {"factor", keys.FloatOr("rope.scaling.factor", 1)}};
  if (type == "linear") return;
  scaling["original_max_position_embeddings"] = keys.Int("rope.scaling.original_context_length");
  constexpr std::array<std::array<const char*, 2>, 3> kFields = {
      {{"yarn_attn_factor", "attention_factor"},
       {"yarn_beta_fast", "beta_fast"},
       {"yarn_beta_slow", "beta_slow"}}};
  for (const auto& [key, field] : kFields) {
    const std::string full = absl::StrCat("rope.scaling.", key);
    if (keys.Has(full)) scaling[field] = keys.FloatOr(full, 1);
  }
  if (keys.FloatOr("rope.scaling.yarn_ext_factor", 1) != 1) {
    keys.Fail("rope.scaling.yarn_ext_factor", "expected 1");
  }
}

// Reads what all families have.
void ReadUsual(const Architecture& architecture, ArchitectureKeys& keys, Json& config) {
  const GgufFile& file = keys.file();
  const int64_t heads = keys.Int("attention.head_count"), head_dim = HeadDim(keys);
  config = {{"model_type", std::string(architecture.model_type)},
            {"torch_dtype", DType(file)},
            {"hidden_size", keys.Int("embedding_length")},
            {"num_hidden_layers", NumLayers(keys)},
            {"num_attention_heads", std::max<int64_t>(heads, 1)},
            {"head_dim", head_dim},
            {"rms_norm_eps", keys.FloatOr("attention.layer_norm_rms_epsilon", 1e-5)},
            {"tie_word_embeddings", !file.tensors().contains("output.weight")}};
  if (keys.Has("context_length")) config["max_position_embeddings"] = keys.Int("context_length");
  if (FindTensor(file, ".attn_q.bias") != nullptr) config["attention_bias"] = true;
  if (FindTensor(file, ".ffn_up.bias") != nullptr) config["mlp_bias"] = true;
  ReadRope(architecture, keys, config);
}

// Reads what all layers of a model have where they are of one kind.
void ReadDense(const Architecture& architecture, ArchitectureKeys& keys, Json& config) {
  const int64_t head_dim = config["head_dim"];
  config["intermediate_size"] = keys.Int("feed_forward_length");
  config["num_key_value_heads"] =
      keys.IntOr("attention.head_count_kv", config["num_attention_heads"]);
  if (keys.IntOr("attention.value_length", head_dim, 0) != head_dim) {
    keys.Fail("attention.value_length", "expected attention.key_length");
  }
  if (architecture.model_type != "phi3" &&
      keys.IntOr("rope.dimension_count", head_dim, 0) != head_dim) {
    keys.Fail("rope.dimension_count", "expected attention.key_length");
  }
  if (keys.IntOr("expert_count", 0, 0) != 0) {
    keys.Fail("expert_count", "expected 0: this architecture's experts are not supported");
  }
}

// Tokens that end an answer: those of the keys, and those whose texts are known to, as files name
// one end but chat templates use another.
Json EndTokens(kernels::AttrReader& reader, int64_t vocab_size) {
  constexpr std::string_view kTexts[] = {"<|eot_id|>",     "<|eom_id|>",    "<|im_end|>",
                                         "<|end|>",        "<end_of_turn>", "<|endoftext|>",
                                         "<|end_of_text|>"};
  constexpr int64_t kControl = 3, kUserDefined = 4;
  std::vector<uint64_t> ids;  // unsigned, as in JSON that was parsed
  for (const char* role : {"eos", "eot", "eom"}) {
    const std::string key = absl::StrCat("tokenizer.ggml.", role, "_token_id");
    if (reader.Has(key)) ids.push_back(static_cast<uint64_t>(reader.Int(key, 0, vocab_size - 1)));
  }
  if (reader.Has("tokenizer.ggml.token_type")) {
    const std::vector<std::string> tokens = reader.Strings("tokenizer.ggml.tokens");
    const std::vector<int64_t> types = reader.IntPerLayer(
        "tokenizer.ggml.token_type", static_cast<int>(tokens.size()), 0, INT32_MAX);
    for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i) {
      const bool may_end = types[i] == kControl || types[i] == kUserDefined;
      if (may_end && std::ranges::find(kTexts, tokens[i]) != std::end(kTexts)) {
        ids.push_back(i);
      }
    }
  }
  Json list = Json::array();
  for (const uint64_t id : ids) {
    if (std::ranges::find(list, Json(id)) == list.end()) list.push_back(id);
  }
  return list;
}

}  // namespace

absl::StatusOr<Json> GgufConfig(const GgufFile& file) {
  kernels::AttrReader reader(file.metadata());
  ASSIGN_OR_RETURN(const Architecture* const architecture, FindArchitecture(file));
  const auto table = file.tensors().find(std::string_view(kTable));
  if (table == file.tensors().end() || table->second.shape.rank() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", kTable, "': expected a matrix, but it is missing"));
  }
  const int64_t vocab_size = table->second.shape[0];
  ArchitectureKeys keys(file, architecture->name);
  Json config;
  ReadUsual(*architecture, keys, config);
  if (!architecture->is_hybrid) ReadDense(*architecture, keys, config);
  if (architecture->read != nullptr) architecture->read(keys, config);
  config["vocab_size"] = vocab_size;
  if (reader.Has("tokenizer.ggml.bos_token_id")) {
    config["bos_token_id"] = reader.Int("tokenizer.ggml.bos_token_id", 0, vocab_size - 1);
  }
  config["eos_token_id"] = EndTokens(reader, vocab_size);
  absl::Status problems = reader.status();
  AddProblems(problems, keys.Done(kIgnored));
  if (!problems.ok()) return problems;
  return config;
}

}  // namespace ovq::model
