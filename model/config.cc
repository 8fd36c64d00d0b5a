#include "model/config.h"

#include <filesystem>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxVocab = 1 << 21;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 4096;

// Fields that transformers writes and that mean nothing here.
constexpr std::string_view kBookkeeping[] = {
    "_name_or_path",           "architectures",        "auto_map",
    "initializer_range",       "pad_token_id",         "attention_dropout",
    "max_position_embeddings", "transformers_version", "use_cache"};

absl::Status Invalid(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", std::string(what)));
}

bool IsBookkeeping(std::string_view key) {
  for (std::string_view known : kBookkeeping) {
    if (key == known) return true;
  }
  return false;
}

absl::StatusOr<Attrs::Value> ToList(const std::string& field, const Json& list) {
  std::vector<int64_t> integers;
  std::vector<std::string> strings;
  for (const Json& entry : list) {
    if (entry.is_string()) strings.push_back(entry.get_ref<const std::string&>());
    if (entry.is_number_integer()) integers.push_back(entry.get<int64_t>());
  }
  if (integers.size() == list.size()) return integers;
  if (strings.size() == list.size()) return strings;
  return Invalid(field, "expected a list of integers only or of strings only");
}

absl::StatusOr<Attrs::Value> ToValue(const std::string& field, const Json& json) {
  if (json.is_null()) return std::monostate();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get_ref<const std::string&>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_array()) return ToList(field, json);
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Invalid(field, "an integer beyond 64 bits");
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  return Invalid(field, "an object is not expected here");
}

// Scalars and flat lists go to config.model, objects to config.sections.
absl::Status FillAttrs(const Json& json, ModelConfig& config) {
  std::vector<std::string> known;
  for (const MixerEntry& entry : MixerRegistry()) {
    if (entry.section.empty()) continue;
    const std::string name(entry.section);
    if (config.sections.try_emplace(name, Attrs(absl::StrCat(name, "."))).second) {
      known.push_back(name);
    }
  }
  for (const auto& [key, value] : json.items()) {
    if (IsBookkeeping(key) || value.is_null()) continue;
    if (!value.is_object()) {
      absl::StatusOr<Attrs::Value> attr = ToValue(key, value);
      if (!attr.ok()) return attr.status();
      config.model.Set(key, *std::move(attr));
      continue;
    }
    const auto section = config.sections.find(key);
    if (section == config.sections.end()) {
      return Invalid(key, absl::StrCat("unknown section; known: ", absl::StrJoin(known, ", ")));
    }
    for (const auto& [field, entry] : value.items()) {
      absl::StatusOr<Attrs::Value> attr = ToValue(absl::StrCat(key, ".", field), entry);
      if (!attr.ok()) return attr.status();
      if (!entry.is_null()) section->second.Set(field, *std::move(attr));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLayerTypes(AttrReader& reader, ModelConfig& config) {
  config.layer_types = reader.Strings("layer_types");
  if (!reader.status().ok()) return reader.status();
  if (static_cast<int64_t>(config.layer_types.size()) != config.n_layers) {
    return Invalid("layer_types", absl::StrCat("has ", config.layer_types.size(),
                                               " entries, num_hidden_layers is ", config.n_layers));
  }
  for (int i = 0; i < config.n_layers; ++i) {
    if (FindMixer(config.layer_types[i])) continue;
    std::vector<std::string> known;
    for (const MixerEntry& entry : MixerRegistry()) known.emplace_back(entry.layer_type);
    return Invalid(absl::StrCat("layer_types[", i, "]"),
                   absl::StrCat("unknown layer type ", Quoted(config.layer_types[i]),
                                "; known: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

// What the layers say of their fields, by their states on the least demanding device. Fields that
// several mixers share are known even where no layer reads them.
absl::Status CheckLayers(const ModelConfig& config) {
  for (const char* field : {"num_attention_heads", "num_key_value_heads", "head_dim",
                            "value_head_dim", "sliding_window", "rope_theta"}) {
    config.model.Ignore(field);
  }
  return LayerStates(config, DType::kF32, Device::kReference).status();
}

// eos_token_id: an integer or a list of them.
absl::Status ReadSpecialTokens(const Json& json, AttrReader& reader, ModelConfig& config) {
  if (config.model.Has("bos_token_id")) {
    config.bos_token_id =
        static_cast<int32_t>(reader.Int("bos_token_id", 0, config.vocab_size - 1));
  }
  config.model.Ignore("eos_token_id");
  const auto eos = json.find("eos_token_id");
  if (eos == json.end() || eos->is_null()) return reader.status();
  const Json list = eos->is_array() ? *eos : Json::array({*eos});
  for (const Json& id : list) {
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() >= static_cast<uint64_t>(config.vocab_size)) {
      return Invalid("eos_token_id", absl::StrCat("expected integers in [0, ",
                                                  config.vocab_size - 1, "] or a list of them"));
    }
    config.eos_token_ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return reader.status();
}

absl::Status ReadDType(AttrReader& reader, ModelConfig& config) {
  constexpr std::string_view kNames[] = {"float32", "bfloat16", "float16"};
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  // Newer versions of transformers call the field dtype.
  const char* field = config.model.Has("torch_dtype") ? "torch_dtype" : "dtype";
  config.model.Ignore("dtype");
  config.weights_dtype = kTypes[reader.ChoiceOr(field, kNames)];
  return reader.status();
}

absl::Status ReadTokenizer(const std::string& folder, AttrReader& reader, ModelConfig& config) {
  const std::string kind = reader.StringOr("tokenizer", "");
  const int64_t offset = reader.IntOr("tokenizer_byte_offset", 0, 0, kMaxVocab);
  if (!reader.status().ok()) return reader.status();
  std::error_code error;
  const bool has_pieces = std::filesystem::exists(folder + "/tokenizer.model", error);
  const bool has_bpe = TokenizerFolder::IsIn(folder);
  if (!kind.empty() && kind != "bytes") {
    return Invalid("tokenizer", absl::StrCat("unknown value ", Quoted(kind), "; known: bytes"));
  }
  if (kind.empty() && config.model.Has("tokenizer_byte_offset")) {
    return Invalid("tokenizer_byte_offset", "given without \"tokenizer\": \"bytes\"");
  }
  if (has_pieces && !kind.empty()) {
    return Invalid("tokenizer", "is \"bytes\", but the folder has a tokenizer.model as well");
  }
  if (has_pieces) {
    config.tokenizer = TokenizerKind::kSentencePiece;
  } else if (!kind.empty()) {
    if (offset + 256 > config.vocab_size) {
      return Invalid("tokenizer",
                     absl::StrCat("bytes from offset ", offset, " need a vocab_size of ",
                                  offset + 256, ", got ", config.vocab_size));
    }
    config.tokenizer = TokenizerKind::kBytes;
    config.tokenizer_byte_offset = static_cast<int32_t>(offset);
  } else if (has_bpe) {
    config.tokenizer = TokenizerKind::kBpe;
  }
  return absl::OkStatus();
}

absl::Status ReadModel(AttrReader& reader, ModelConfig& config) {
  constexpr std::string_view kModelTypes[] = {"ovq_hybrid"};
  constexpr std::string_view kActivations[] = {"silu"};
  if (!config.model.Has("model_type"))
    return Invalid("model_type", "expected ovq_hybrid, but it is missing");
  config.model_type = kModelTypes[reader.ChoiceOr("model_type", kModelTypes)];
  config.vocab_size = reader.Int("vocab_size", 1, kMaxVocab);
  config.hidden_size = reader.Int("hidden_size", 1, kMaxWidth);
  config.n_layers = static_cast<int>(reader.Int("num_hidden_layers", 1, kMaxLayers));
  config.rms_norm_eps = static_cast<float>(reader.FloatOr("rms_norm_eps", 1e-5, 0.0, 1.0));
  config.tie_word_embeddings = reader.BoolOr("tie_word_embeddings", false);
  reader.ChoiceOr("hidden_act", kActivations);
  if (!reader.status().ok()) return reader.status();
  config.intermediate_size = reader.IntPerLayer("intermediate_size", config.n_layers, 0, kMaxWidth);
  return reader.status();
}

absl::Status Read(const std::string& folder, const Json& json, ModelConfig& config) {
  absl::Status status = FillAttrs(json, config);
  AttrReader reader(config.model);
  if (status.ok()) status = ReadModel(reader, config);
  if (status.ok()) status = ReadLayerTypes(reader, config);
  if (status.ok()) status = CheckLayers(config);
  if (status.ok()) status = ReadSpecialTokens(json, reader, config);
  if (status.ok()) status = ReadDType(reader, config);
  if (status.ok()) status = ReadTokenizer(folder, reader, config);
  return status;
}

std::string FolderName(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(folder, error);
  return (error ? std::filesystem::path(folder) : path).filename().string();
}

}  // namespace

const char* TokenizerName(TokenizerKind kind) {
  constexpr const char* kNames[] = {"", "bytes", "sentencepiece", "bpe"};
  return kNames[static_cast<size_t>(kind)];
}

const Attrs& ModelConfig::section(std::string_view section_name) const {
  static const Attrs* const empty = new Attrs;
  const auto it = sections.find(section_name);
  return it == sections.end() ? *empty : it->second;
}

StateSpec ModelConfig::state_spec(int i, DType kv_dtype, Device device) const {
  return {.model = model,
          .section = section(FindMixer(layer_types[i])->section),
          .d_model = hidden_size,
          .kv_dtype = kv_dtype,
          .device = device};
}

absl::StatusOr<std::vector<MixerState>> LayerStates(const ModelConfig& config, DType kv_dtype,
                                                    Device device) {
  std::vector<MixerState> states;
  for (int i = 0; i < config.n_layers; ++i) {
    absl::StatusOr<MixerState> state =
        FindMixer(config.layer_types[i])->state(config.state_spec(i, kv_dtype, device));
    if (!state.ok()) return state.status();
    states.push_back(*std::move(state));
  }
  return states;
}

absl::StatusOr<ModelConfig> LoadConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<Json> json = ParseJsonObject(*text, path);
  if (!json.ok()) return json.status();
  ModelConfig config;
  config.name = FolderName(folder);
  const absl::Status status = Read(folder, *json, config);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  for (std::string_view key : kBookkeeping) json->erase(std::string(key));
  config.canonical = json->dump();
  return config;
}

}  // namespace ovq
