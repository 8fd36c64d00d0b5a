#include "model/load_config.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "kernels/mixers/common/attention.h"
#include "model/families/family.h"
#include "model/gguf/gguf_config.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = 16 << 20, kMaxGenerationBytes = 1 << 20;

// Replaces Python's bare word Infinity, which is not JSON, by null: no bound.
std::string WithoutInfinity(std::string text) {
  constexpr std::string_view kInfinity = "Infinity";
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\') ++i;
    if (in_string || text.compare(i, kInfinity.size(), kInfinity) != 0) continue;
    if (i == 0 || text[i - 1] != '-') text.replace(i, kInfinity.size(), "null");
  }
  return text;
}

// Replaces Infinity as newer versions of transformers write it.
void ReplaceInfinity(Json& json) {
  static const Json* const infinity = new Json({{"__float__", "Infinity"}});
  for (Json& value : json) {
    if (value == *infinity) value = nullptr;
    if (value.is_structured()) ReplaceInfinity(value);
  }
}

void FindFamily(const Json& json, kernels::AttrReader& reader, ModelConfig& config) {
  std::vector<std::string> known;
  const std::string type = reader.StringOr("model_type", "");
  for (const Family* family : Families()) {
    known.emplace_back(family->model_type);
    const bool is_marked = type.empty() && !family->marker.empty();
    if (family->model_type == type || (is_marked && json.contains(std::string(family->marker)))) {
      config.family = family;
    }
  }
  if (config.family) return;
  const std::string list = absl::StrJoin(known, ", ");
  reader.Fail("model_type", type.empty()
                                ? absl::StrCat("expected one of ", list, ", but it is missing")
                                : absl::StrCat("unknown value ", Quoted(type), "; known: ", list));
}

// The vocabulary size, or the largest allowed if it is unknown.
int64_t VocabSize(const ModelConfig& config) {
  return config.vocab_size > 0 ? config.vocab_size : kMaxVocab;
}

// Reads eos_token_id: an id below vocab_size or a list of them; empty if it is absent or null.
std::vector<int32_t> TokenIds(const Json& object, int64_t vocab_size, kernels::AttrReader& reader) {
  constexpr char kField[] = "eos_token_id";
  std::vector<int32_t> ids;
  Json list = object.value(kField, Json::array());
  if (!list.is_array() && !list.is_null()) list = Json::array({list});
  for (const Json& id : list) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size)) {
      ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
    } else {
      reader.Fail(kField, absl::StrCat("expected integers in [0, ", vocab_size - 1,
                                       "] or a list of them, got ", id.dump()));
    }
  }
  return ids;
}

void ReadDType(const kernels::Attrs& fields, kernels::AttrReader& reader, ModelConfig& config) {
  constexpr std::string_view kNames[] = {"float32", "bfloat16", "float16"};
  constexpr kernels::DType kTypes[] = {kernels::DType::kF32, kernels::DType::kBF16,
                                       kernels::DType::kF16};
  // Newer versions of transformers call the field dtype.
  const char* field = fields.Has("torch_dtype") ? "torch_dtype" : "dtype";
  config.weights_dtype = kTypes[reader.ChoiceOr(field, kNames)];
}

void ReadTokenizer(const std::string& folder, const kernels::Attrs& fields,
                   kernels::AttrReader& reader, ModelConfig& config) {
  const std::string kind = reader.StringOr("tokenizer", "");
  const int64_t offset = reader.IntOr("tokenizer_byte_offset", 0, 0, kMaxVocab);
  std::error_code error;
  const bool has_pieces = std::filesystem::exists(folder + "/tokenizer.model", error);
  const bool has_json = std::filesystem::exists(folder + "/tokenizer.json", error);
  const bool has_bpe = TokenizerFolder::IsIn(folder);
  if (!kind.empty() && kind != "bytes") {
    reader.Fail("tokenizer", absl::StrCat("unknown value ", Quoted(kind), "; known: bytes"));
  } else if (!fields.Has("tokenizer") && fields.Has("tokenizer_byte_offset")) {
    reader.Fail("tokenizer_byte_offset", "given without \"tokenizer\": \"bytes\"");
  } else if (has_pieces && !kind.empty()) {
    reader.Fail("tokenizer", "is \"bytes\", but the folder has a tokenizer.model as well");
  } else if (!kind.empty() && offset + 256 > VocabSize(config)) {
    reader.Fail("tokenizer", absl::StrCat("bytes from offset ", offset, " need a vocab_size of ",
                                          offset + 256, ", got ", config.vocab_size));
  } else if (has_pieces && !has_json) {
    config.tokenizer = TokenizerKind::kSentencePiece;
  } else if (!kind.empty()) {
    config.tokenizer = TokenizerKind::kBytes;
    config.tokenizer_byte_offset = static_cast<int32_t>(offset);
  } else if (has_bpe) {
    config.tokenizer = TokenizerKind::kBpe;
  }
}

absl::Status ReadQuantizationConfig(const Json& json, ModelConfig& config) {
  const Json object = json.value("quantization_config", Json());
  if (object.is_object()) return ReadQuantization(object, config.quantization);
  if (!object.is_null()) {
    return absl::InvalidArgumentError("quantization_config: expected an object");
  }
  if (json.value("quantization", Json()).is_null()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "quantization: expected null: MLX's form of quantized weights is not supported");
}

// Marks the layers whose mixers' fields are wrong.
absl::Status CheckMixers(ModelConfig& config) {
  absl::Status problems;
  for (int i = 0; i < static_cast<int>(config.layers.size()); ++i) {
    LayerSpec& layer = config.layers[i];
    layer.is_wrong |= layer.mixer == nullptr;
    if (layer.mixer == nullptr) continue;
    const absl::Status status =
        kernels::FindMixer(layer.type)
            ->state(config.state_spec(i, kernels::DType::kF32, kernels::Device::kCpu))
            .status();
    layer.is_wrong |= !status.ok();
    AddProblems(problems, status);
  }
  return problems;
}

// Checks that a value residual mixes in the values of an attention layer that comes no later.
absl::Status CheckValueResiduals(const ModelConfig& config) {
  const auto attention_of = [&](int i) {
    const LayerSpec& layer = config.layers[i];
    return layer.is_wrong ? nullptr : layer.mixer->attention();
  };
  for (int i = 0; i < static_cast<int>(config.layers.size()); ++i) {
    const kernels::AttentionConfig* const attention = attention_of(i);
    if (attention == nullptr) continue;
    const kernels::AttentionInput& input = attention->input;
    if (input.value_residual == kernels::AttentionInput::ValueResidual::kNone) continue;
    const int from = input.value_layer;
    if (from <= i && (config.layers[from].is_wrong || attention_of(from) != nullptr)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("value_residual_layer: expected an attention layer in [0, ", i, "], as layer ",
                     i, " mixes its values in, got ", from));
  }
  return absl::OkStatus();
}

// Checks that every field of config.json has been read. Sections of layer types that the model does
// not use may be unread. Families that are not strict allow fields for other code.
absl::Status CheckAllRead(const ConfigFile& file, const ModelConfig& config) {
  absl::Status problems;
  if (config.family->is_strict) AddProblems(problems, file.fields.CheckAllRead());
  for (const LayerSpec& layer : config.layers) {
    const kernels::MixerEntry* mixer = kernels::FindMixer(layer.type);
    if (mixer != nullptr && (config.family->is_strict || mixer->section == kSlotsSection)) {
      AddProblems(problems, file.section(mixer->section).CheckAllRead());
    }
  }
  return problems;
}

// Merges text_config, the object in which transformers writes a text model that is part of a larger
// one, into the top level. The head is tied if either level says so, and the tokens are those of
// the top level where it names them.
Json WithTextConfig(const Json& json, kernels::Attrs& fields) {
  Json all = json;
  FillAttrs(json, fields);
  const auto text = json.find("text_config");
  if (text == json.end() || !text->is_object()) return all;
  Json of_text = *text;
  of_text.erase("model_type");
  constexpr const char* kTied = "tie_word_embeddings";
  if (all.value(kTied, Json()) == true) of_text.erase(kTied);
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    if (!all.value(token, Json()).is_null()) of_text.erase(token);
  }
  FillAttrs(of_text, fields, "text_config.");
  all.update(of_text);
  return all;
}

absl::Status Read(const std::string& folder, const Json& in_file, const CachePolicy& policy,
                  ModelConfig& config) {
  kernels::Attrs fields;
  const Json json = WithTextConfig(in_file, fields);
  // A copy of the fields, so that errors here hide no unread ones.
  ConfigFile file{json, fields, ServedRule(policy, json)};
  kernels::AttrReader reader(fields);
  FindFamily(json, reader, config);
  ReadDType(fields, reader, config);
  absl::Status problems = ReadQuantizationConfig(json, config);
  if (config.family) AddProblems(problems, config.family->read(file, config));
  if (config.family && config.hidden_size > 0) {
    AddProblems(problems, ApplyCachePolicy(policy, file, config));
    AddProblems(problems, CheckMixers(config));
    AddProblems(problems, CheckValueResiduals(config));
    AddProblems(problems, CheckAllRead(file, config));
  }
  const int64_t vocab_size = VocabSize(config);
  const int64_t bos = reader.IntOr("bos_token_id", -1, 0, vocab_size - 1);
  if (bos >= 0 && reader.ok()) config.bos_token_id = static_cast<int32_t>(bos);
  config.eos_token_ids = TokenIds(json, vocab_size, reader);
  ReadTokenizer(folder, fields, reader, config);
  AddProblems(problems, reader.status());
  return problems;
}

absl::StatusOr<Json> ReadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(Json json, ParseJsonObject(WithoutInfinity(std::move(text)), path));
  ReplaceInfinity(json);
  return json;
}

absl::StatusOr<Json> ReadGguf(const std::string& path) {
  GgufFile file;
  RETURN_IF_ERROR(GgufFile::Open(path, file));
  absl::StatusOr<Json> json = GgufConfig(file);
  if (!json.ok()) return InContext(path, json.status());
  return json;
}

// Adds the end-of-sequence ids of generation_config.json, if there is one.
absl::Status ReadGeneration(const std::string& folder, ModelConfig& config) {
  const std::string path = absl::StrCat(folder, "/generation_config.json");
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxGenerationBytes));
  ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, path));
  const kernels::Attrs none;
  kernels::AttrReader reader(none);
  for (const int32_t id : TokenIds(json, VocabSize(config), reader)) {
    if (std::ranges::find(config.eos_token_ids, id) != config.eos_token_ids.end()) continue;
    config.eos_token_ids.push_back(id);
  }
  return InContext(path, reader.status());
}

// The name of a model in the cache of the Hugging Face hub, .../models--ORG--NAME/snapshots/HASH:
// "ORG/NAME". Unset for other paths.
std::optional<std::string> HubName(const std::filesystem::path& folder) {
  constexpr std::string_view kModels = "models--";
  const std::filesystem::path snapshots = folder.parent_path();
  const std::string entry = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !entry.starts_with(kModels)) return std::nullopt;
  const std::string name = entry.substr(kModels.size());
  const size_t dashes = name.find("--");
  if (dashes == std::string::npos) return name;
  return absl::StrCat(name.substr(0, dashes), "/", name.substr(dashes + 2));
}

}  // namespace

std::string ModelName(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  std::optional<std::string> name = IsGguf(folder) ? GgufModelName(path.string()) : HubName(path);
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (!name && !error && real.filename() == path.filename()) name = HubName(real);
  return ValidUtf8(name.value_or(path.filename().string()));
}

std::string ConfigPath(const std::string& folder) {
  return IsGguf(folder) ? folder : absl::StrCat(folder, "/config.json");
}

absl::StatusOr<ModelConfig> LoadConfig(const std::string& folder, const CachePolicy& policy) {
  ModelConfig config;
  const absl::Status status = LoadConfig(folder, config, policy);
  if (!status.ok()) return status;
  return config;
}

absl::Status LoadConfig(const std::string& folder, ModelConfig& config, const CachePolicy& policy) {
  const std::string path = ConfigPath(folder);
  ASSIGN_OR_RETURN(Json json, IsGguf(folder) ? ReadGguf(path) : ReadConfig(path));
  config.name = ModelName(folder);
  absl::Status status = InContext(path, Read(folder, json, policy, config));
  AddProblems(status, ReadGeneration(folder, config));
  for (std::string_view key : Bookkeeping()) json.erase(std::string(key));
  config.canonical = json.dump();
  if (!policy.layer_type.empty()) absl::StrAppend(&config.canonical, " ", policy.name);
  return status;
}

}  // namespace ovq::model
