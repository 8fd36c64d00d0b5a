// The tokenizer files of a model's folder, as one tokenizer.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/tokenizers/tokenizer_file.h"

namespace ovq {

struct TokenizerFolder {
  std::string path;    // of the main file, for messages: tokenizer.json or vocab.json
  TokenizerFile file;  // vocab.json and merges.txt as GPT-2's tokenizer.json
  // What tokenizer_config.json says of the ends of a text: nothing, or whether this token stands
  // there.
  struct End {
    std::optional<bool> wanted;
    std::string token;
  };
  End bos, eos;

  // Whether the folder has tokenizer.json, or vocab.json and merges.txt.
  static bool IsIn(const std::string& folder);
  // Errors name the file.
  static absl::StatusOr<TokenizerFolder> Read(const std::string& folder, int64_t vocab_size);
};

// A JSON file of a folder that need not be there: then an empty object.
absl::StatusOr<nlohmann::json> OptionalObject(const std::string& path);
// A token as transformers writes it: its text, or an object with it; "" if there is none.
std::string TokenText(const nlohmann::json& config, std::string_view key);

}  // namespace ovq
