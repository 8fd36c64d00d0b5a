#include "model/gguf/find_architecture.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "model/gguf/hybrid_architectures.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

// Every fourth layer has no RoPE; no key says so.
void ReadSmolLm3(ArchitectureKeys&, Json& config) { config["no_rope_layer_interval"] = 4; }

// Lists the types of layers by their flags, 1 for a sliding one.
Json LayerTypes(const std::vector<int64_t>& slides, const char* other, const char* sliding) {
  Json types = Json::array();
  for (const int64_t slide : slides) types.push_back(slide != 0 ? sliding : other);
  return types;
}

void ReadGemma3(ArchitectureKeys& keys, Json& config) {
  constexpr int64_t kLayersOf27B = 62;
  const int64_t hidden = config["hidden_size"], heads = config["num_attention_heads"];
  // The scale of scores has no key. All sizes but one scale by the head's.
  config["query_pre_attn_scalar"] =
      config["num_hidden_layers"] == kLayersOf27B ? Json(hidden / heads) : config["head_dim"];
  config["rope_local_base_freq"] = keys.FloatOr("rope.freq_base_swa", 10000);
  config["sliding_window"] = keys.Int("attention.sliding_window");
  config["sliding_window_pattern"] = keys.IntOr("attention.sliding_window_pattern", 6);
  if (keys.Has("final_logit_softcapping")) {
    config["final_logit_softcapping"] = keys.FloatOr("final_logit_softcapping", 0);
  }
}

// Olmo 3 has Olmo 2's architecture, with windows.
void ReadOlmo2(ArchitectureKeys& keys, Json& config) {
  if (!keys.Has("attention.sliding_window")) return;
  config["model_type"] = "olmo3";
  const double base = config["rope_theta"];
  if (keys.FloatOr("rope.freq_base_swa", base) != base) {
    keys.Fail("rope.freq_base_swa", "expected rope.freq_base");
  }
  config["sliding_window"] = keys.Int("attention.sliding_window");
  config["layer_types"] =
      LayerTypes(keys.IntPerLayer("attention.sliding_window_pattern", config["num_hidden_layers"]),
                 "full_attention", "sliding_attention");
}

constexpr std::string_view kLongRopeTensors[] = {"rope_factors_long.weight",
                                                 "rope_factors_short.weight"};

void ReadPhi3(ArchitectureKeys& keys, Json& config) {
  const int64_t window = keys.IntOr("attention.sliding_window", 0, 0);
  config["sliding_window"] = window > 0 ? Json(window) : Json();
  constexpr char kOriginal[] = "rope.scaling.original_context_length", kMost[] = "context_length";
  const char* const original = keys.Has(kOriginal) ? kOriginal : kMost;
  if (keys.Has(original)) config["original_max_position_embeddings"] = keys.Int(original);
  const double head_dim = config["head_dim"];
  config["partial_rotary_factor"] =
      static_cast<double>(keys.IntOr("rope.dimension_count", config["head_dim"])) /
      std::max(head_dim, 1.0);
  const Json of_long = TensorNumbers(keys.file(), kLongRopeTensors[0]),
             of_short = TensorNumbers(keys.file(), kLongRopeTensors[1]);
  if (of_long.empty() && of_short.empty()) return;
  config["rope_scaling"] = {
      {"rope_type", "longrope"}, {"long_factor", of_long}, {"short_factor", of_short}};
  if (keys.Has("rope.scaling.attn_factor")) {
    config["rope_scaling"]["attention_factor"] = keys.FloatOr("rope.scaling.attn_factor", 1);
  }
}

constexpr GgufName kGemma3Names[] = {{"ffn_norm.", "pre_feedforward_layernorm."}};
constexpr GgufName kPhi3Names[] = {{"ffn_up.", "mlp.gate_up_proj."}};

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "llama",
     .interleaves_heads = true,
     .field_tensors = kRopeTensors,
     .read = ReadRopeDivisors},
    {.name = "smollm3", .model_type = "smollm3", .interleaves_heads = true, .read = ReadSmolLm3},
    {.name = "qwen2", .model_type = "qwen2"},
    {.name = "qwen3", .model_type = "qwen3"},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .names = kGemma3Names,
     .adds_one_to_norms = true,
     .rope_base = 1e6,
     .read = ReadGemma3},
    {.name = "olmo2", .model_type = "olmo2", .read = ReadOlmo2},
    {.name = "phi3",
     .model_type = "phi3",
     .names = kPhi3Names,
     .field_tensors = kLongRopeTensors,
     .read = ReadPhi3}};

}  // namespace

absl::StatusOr<const Architecture*> FindArchitecture(const GgufFile& file) {
  constexpr char kKey[] = "general.architecture";
  kernels::AttrReader reader(file.metadata());
  const std::string name = reader.StringOr(kKey, "");
  if (!reader.ok()) return reader.status();
  std::vector<absl::string_view> names;
  for (const std::span<const Architecture> some :
       {std::span<const Architecture>(kArchitectures), HybridArchitectures()}) {
    for (const Architecture& known : some) {
      if (known.name == name) return &known;
      names.push_back(AbslView(known.name));
    }
  }
  return absl::UnimplementedError(
      absl::StrCat(kKey, ": expected one of ", absl::StrJoin(names, ", "),
                   name.empty() ? ", but it is missing" : absl::StrCat(", got ", Quoted(name))));
}

}  // namespace ovq::model
