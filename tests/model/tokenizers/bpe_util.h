// Tokenizers for tests, from tokenizer.json files and from parts.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/bpe_tokenizer.h"

namespace ovq::model::test {

inline constexpr int64_t kManyIds = 1 << 21;

nlohmann::json ReadJsonFile(const std::string& path);

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTokenizer(std::string_view text,
                                                             int64_t vocab_size = kManyIds);
// Fails the test if the file is refused.
std::unique_ptr<BpeTokenizer> MakeTokenizer(const nlohmann::json& file);

// A tokenizer.json with this vocabulary, ids in its order, merges "a b", and other top-level
// fields.
nlohmann::json TokenizerJson(const std::vector<std::string>& vocab,
                             const std::vector<std::string>& merges,
                             const nlohmann::json& others = nlohmann::json::object());
// The 256 characters of the byte alphabet, in the order of their bytes.
std::vector<std::string> ByteChars();

std::vector<int32_t> Encode(const BpeTokenizer& tokenizer, std::string_view text);

// The text released after each id, then at the end.
std::vector<std::string> Stream(const BpeTokenizer& tokenizer, const std::vector<int32_t>& ids,
                                bool skip_special);
std::string Decode(const BpeTokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool skip_special = false);

}  // namespace ovq::model::test
