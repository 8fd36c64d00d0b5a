#include "model/load_config.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "model/families/family.h"
#include "model/json_attrs.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxConfigBytes = 16 << 20;

absl::Status Invalid(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": ", std::string(what)));
}

absl::Status FindFamily(AttrReader& reader, ModelConfig& config) {
  std::vector<std::string_view> known;
  for (const Family* family : Families()) known.push_back(family->model_type);
  const std::string type = reader.StringOr("model_type", "");
  if (!reader.ok()) return reader.status();
  for (const Family* family : Families()) {
    if (family->model_type == type) config.family = family;
  }
  if (config.family) return absl::OkStatus();
  const std::string list = absl::StrJoin(
      known, ", ", [](std::string* out, std::string_view name) { out->append(name); });
  return Invalid("model_type",
                 type.empty() ? absl::StrCat("expected one of ", list, ", but it is missing")
                              : absl::StrCat("unknown value ", Quoted(type), "; known: ", list));
}

// eos_token_id: an integer or a list of them.
absl::Status ReadSpecialTokens(const Json& json, AttrReader& reader, ModelConfig& config) {
  const int64_t bos = reader.IntOr("bos_token_id", -1, 0, config.vocab_size - 1);
  if (bos >= 0) config.bos_token_id = static_cast<int32_t>(bos);
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

absl::Status ReadDType(const Attrs& fields, AttrReader& reader, ModelConfig& config) {
  constexpr std::string_view kNames[] = {"float32", "bfloat16", "float16"};
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  // Newer versions of transformers call the field dtype.
  const char* field = fields.Has("torch_dtype") ? "torch_dtype" : "dtype";
  config.weights_dtype = kTypes[reader.ChoiceOr(field, kNames)];
  return reader.status();
}

absl::Status ReadTokenizer(const std::string& folder, const Attrs& fields, AttrReader& reader,
                           ModelConfig& config) {
  const std::string kind = reader.StringOr("tokenizer", "");
  const int64_t offset = reader.IntOr("tokenizer_byte_offset", 0, 0, kMaxVocab);
  if (!reader.status().ok()) return reader.status();
  std::error_code error;
  const bool has_pieces = std::filesystem::exists(folder + "/tokenizer.model", error);
  const bool has_bpe = TokenizerFolder::IsIn(folder);
  if (!kind.empty() && kind != "bytes") {
    return Invalid("tokenizer", absl::StrCat("unknown value ", Quoted(kind), "; known: bytes"));
  }
  if (kind.empty() && fields.Has("tokenizer_byte_offset")) {
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

absl::Status Read(const std::string& folder, const Json& json, ModelConfig& config) {
  Attrs fields;
  absl::Status status = FillAttrs(json, fields);
  AttrReader reader(fields);
  if (status.ok()) status = FindFamily(reader, config);
  if (status.ok()) status = ReadDType(fields, reader, config);
  if (status.ok()) status = config.family->read(json, fields, config);
  if (status.ok()) status = LayerStates(config, DType::kF32, Device::kReference).status();
  if (status.ok()) status = ReadSpecialTokens(json, reader, config);
  if (status.ok()) status = ReadTokenizer(folder, fields, reader, config);
  return status;
}

std::string FolderName(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(folder, error);
  return (error ? std::filesystem::path(folder) : path).filename().string();
}

}  // namespace

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
  for (std::string_view key : Bookkeeping()) json->erase(std::string(key));
  config.canonical = json->dump();
  return config;
}

}  // namespace ovq
