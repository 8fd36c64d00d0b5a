#include "model/tokenizers/tokenizer_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "base/files.h"
#include "base/json.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "model/gguf/gguf_file.h"
#include "model/tokenizers/gguf_tokenizer.h"
#include "model/tokenizers/json_fields.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = 256 << 20;

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

TokenizerFolder::End ReadEnd(JsonFields& config, const Json& json, const char* wanted,
                             const char* token) {
  TokenizerFolder::End end;
  end.token = TokenText(json, token);
  if (config.Has(wanted)) end.wanted = config.BoolOr(wanted, false);
  return end;
}

// The texts of the tokens that have a role, and of the other special ones that are listed.
std::vector<std::string> SpecialTexts(const Json& config) {
  std::vector<std::string> texts;
  for (const std::string_view role : kTokenRoles) texts.push_back(TokenText(config, role));
  const Json more = config.value(kMoreSpecialTokens, Json());
  for (const Json& token : more.is_array() ? more : Json::array()) {
    texts.push_back(TokenText({{"token", token}}, "token"));
  }
  return texts;
}

// Collects the tokens that transformers keeps beside vocab.json: by id in added_tokens_decoder of
// tokenizer_config.json; ids by token in added_tokens.json; and by role. GPT-2's own folder has
// none of them.
Json AddedTokens(const Json& config, const Json& added, const Vocab::Entries& vocab) {
  Json list = Json::array();
  const auto known = [&list](const std::string& content) {
    return std::ranges::any_of(list, [&](const Json& token) {
      return token.is_object() && token.value("content", Json()) == content;
    });
  };
  if (config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object()) {
    for (const auto& [key, token] : config["added_tokens_decoder"].items()) {
      int64_t id = -1;
      list.push_back(token);
      if (token.is_object() && absl::SimpleAtoi(key, &id)) list.back()["id"] = id;
    }
  }
  const auto add_special = [&](const std::string& content) {
    if (content.empty() || known(content)) return;
    for (const auto& [token, id] : vocab) {
      if (token == content) list.push_back({{"id", id}, {"content", content}, {"special", true}});
    }
  };
  const std::vector<std::string> special = SpecialTexts(config);
  for (const std::string& content : special) add_special(content);
  add_special("<|endoftext|>");
  for (const auto& [content, id] : added.items()) {
    const bool is_special = std::ranges::find(special, content) != special.end();
    if (known(content)) continue;
    list.push_back({{"id", id}, {"content", content}, {"special", is_special}});
  }
  return list;
}

// The pre-tokenizer of the class that reads vocab.json and merges.txt in transformers, as ggml
// calls it: Qwen's have their own, others that of GPT-2.
const char* PreTokenizerName(const Json& config) {
  const std::string name = TokenText(config, "tokenizer_class");
  if (name == "Qwen2Tokenizer" || name == "Qwen2TokenizerFast") return "qwen2";
  if (name == "Qwen3_5Tokenizer" || name == "Qwen3_5TokenizerFast") return "qwen35";
  return "gpt-2";
}

absl::Status ReadVocabAndMerges(const std::string& folder, const Json& config, int64_t vocab_size,
                                TokenizerFolder& result) {
  result.path = folder + "/vocab.json";
  absl::StatusOr<std::string> text = ReadFile(result.path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<Vocab::Entries> vocab = ParseVocab(*text, vocab_size);
  if (!vocab.ok()) return InContext(result.path, vocab.status());
  const std::string merges_path = folder + "/merges.txt";
  text = ReadFile(merges_path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<Bpe::MergeList> merges = ParseMerges(*text);
  if (!merges.ok()) return InContext(merges_path, merges.status());
  ASSIGN_OR_RETURN(const Json added, OptionalObject(folder + "/added_tokens.json"));
  const auto prefix = config.find("add_prefix_space");
  const bool add_prefix_space = prefix != config.end() && *prefix == true;
  result.file.rest = {{"added_tokens", AddedTokens(config, added, *vocab)},
                      {"decoder", {{"type", "ByteLevel"}}},
                      {"model", {{"type", "BPE"}}}};
  SetPreTokenizer(PreTokenizerName(config), add_prefix_space, result.file.rest);
  result.file.vocab = *std::move(vocab);
  result.file.merges = *std::move(merges);
  return absl::OkStatus();
}

absl::Status ReadTokenizerJson(const std::string& folder, int64_t vocab_size,
                               TokenizerFolder& result) {
  result.path = folder + "/tokenizer.json";
  ASSIGN_OR_RETURN(const std::string text, ReadFile(result.path, kMaxFileBytes));
  absl::StatusOr<TokenizerFile> file = TokenizerFile::Parse(text, vocab_size);
  if (!file.ok()) return InContext(result.path, file.status());
  result.file = *std::move(file);
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadTokenizerConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(Json config, OptionalObject(TokenizerConfigPath(folder)));
  ASSIGN_OR_RETURN(const Json map, OptionalObject(folder + "/special_tokens_map.json"));
  const auto add = [&](std::string_view field) {
    const auto found = map.find(std::string(field));
    if (found != map.end()) config.emplace(std::string(field), *found);  // unless it is there
  };
  std::ranges::for_each(kTokenRoles, add);
  add(kMoreSpecialTokens);
  return config;
}

absl::Status ReadGguf(const std::string& path, int64_t vocab_size, TokenizerFolder& result) {
  GgufFile file;
  RETURN_IF_ERROR(GgufFile::Open(path, file));
  absl::StatusOr<TokenizerFile> tokenizer = GgufTokenizer(file, vocab_size);
  if (!tokenizer.ok()) return InContext(path, tokenizer.status());
  result.path = path;
  result.file = *std::move(tokenizer);
  return absl::OkStatus();
}

}  // namespace

bool TokenizerFolder::IsIn(const std::string& folder) {
  GgufFile file;
  if (IsGguf(folder)) return GgufFile::Open(folder, file).ok() && HasGgufTokenizer(file);
  return Exists(folder + "/tokenizer.json") ||
         (Exists(folder + "/vocab.json") && Exists(folder + "/merges.txt"));
}

absl::StatusOr<TokenizerFolder> TokenizerFolder::Read(const std::string& folder,
                                                      int64_t vocab_size) {
  TokenizerFolder result;
  ASSIGN_OR_RETURN(const Json config, TokenizerConfig(folder));
  JsonFields fields(config, "");
  result.bos = ReadEnd(fields, config, "add_bos_token", "bos_token");
  result.eos = ReadEnd(fields, config, "add_eos_token", "eos_token");
  if (!fields.status().ok()) return InContext(TokenizerConfigPath(folder), fields.status());
  const absl::Status status = IsGguf(folder) ? ReadGguf(folder, vocab_size, result)
                              : Exists(folder + "/tokenizer.json")
                                  ? ReadTokenizerJson(folder, vocab_size, result)
                                  : ReadVocabAndMerges(folder, config, vocab_size, result);
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<std::map<int64_t, std::string>> TokensBeside(const std::string& folder,
                                                            const Json& config) {
  ASSIGN_OR_RETURN(const Json by_token, OptionalObject(folder + "/added_tokens.json"));
  std::map<int64_t, std::string> tokens;
  for (const auto& [token, id] : by_token.items()) {
    if (id.is_number_integer()) tokens[id.get<int64_t>()] = token;
  }
  const Json by_id = config.value("added_tokens_decoder", Json());
  if (!by_id.is_object()) return tokens;
  for (const auto& [key, token] : by_id.items()) {
    int64_t id = -1;
    if (absl::SimpleAtoi(key, &id)) tokens[id] = TokenText(by_id, key);
  }
  return tokens;
}

std::string TokenizerConfigPath(const std::string& folder) {
  return IsGguf(folder) ? folder : folder + "/tokenizer_config.json";
}

absl::StatusOr<Json> TokenizerConfig(const std::string& folder) {
  if (!IsGguf(folder)) return ReadTokenizerConfig(folder);
  GgufFile file;
  RETURN_IF_ERROR(GgufFile::Open(folder, file));
  absl::StatusOr<Json> config = GgufTokenizerConfig(file);
  if (!config.ok()) return InContext(folder, config.status());
  return config;
}

absl::StatusOr<Json> OptionalObject(const std::string& path) {
  if (!Exists(path)) return Json::object();
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxFileBytes));
  return ParseJsonObject(text, path);
}

std::string TokenText(const Json& config, std::string_view key) {
  const auto token = config.find(std::string(key));
  if (token == config.end()) return "";
  if (token->is_string()) return token->get<std::string>();
  const auto content = token->is_object() ? token->find("content") : token->end();
  return content != token->end() && content->is_string() ? content->get<std::string>() : "";
}

}  // namespace ovq::model
