// TokenizerFolder: the tokenizer files of a model folder, or of a GGUF file, as one tokenizer.json.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/tokenizers/tokenizer_file.h"

namespace ovq::model {

struct TokenizerFolder {
  std::string path;    // main file, for messages: tokenizer.json or vocab.json
  TokenizerFile file;  // vocab.json and merges.txt become the tokenizer.json of GPT-2 or of Qwen
  // One end of a text by tokenizer_config.json. wanted: whether `token` is added there; empty if
  // the file does not say.
  struct End {
    std::optional<bool> wanted;
    std::string token;
  };
  End bos, eos;

  // Whether the folder has tokenizer.json, or vocab.json and merges.txt, or the file a tokenizer.
  static bool IsIn(const std::string& folder);
  // Errors name the file.
  static absl::StatusOr<TokenizerFolder> Read(const std::string& folder, int64_t vocab_size);
};

// The fields of tokenizer_config.json that name a token by its role.
inline constexpr std::string_view kTokenRoles[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
inline constexpr char kMoreSpecialTokens[] = "additional_special_tokens";  // a list of others

// tokenizer_config.json of a folder, empty if it is absent, with those of these fields that
// special_tokens_map.json has alone, as in older folders; or what a GGUF file says of it.
absl::StatusOr<nlohmann::json> TokenizerConfig(const std::string& folder);
// Texts by id of the tokens that TokenizerConfig's added_tokens_decoder and the folder's
// added_tokens.json add to a vocabulary. Entries that are none are left out.
absl::StatusOr<std::map<int64_t, std::string>> TokensBeside(const std::string& folder,
                                                            const nlohmann::json& config);
// Where TokenizerConfig is from.
std::string TokenizerConfigPath(const std::string& folder);
// Reads a JSON file; an empty object if it is absent.
absl::StatusOr<nlohmann::json> OptionalObject(const std::string& path);
// A token as transformers writes it, a text or an object with one; "" if absent.
std::string TokenText(const nlohmann::json& config, std::string_view key);

}  // namespace ovq::model
