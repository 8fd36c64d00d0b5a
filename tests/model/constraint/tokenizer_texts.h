// The texts of a tokenizer's tokens, for programs that make a vocabulary of constraints from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/bpe_tokenizer.h"

namespace ovq::constraint::test {

// folder: of a tokenizer.json. [vocab], in bytes; "" for special tokens. Errors are those of
// loading it.
inline absl::StatusOr<std::vector<std::string>> ReadTokenTexts(const std::string& folder) {
  const auto tokenizer = model::BpeTokenizer::Load(folder, int64_t{1} << 21);
  if (!tokenizer.ok()) return tokenizer.status();
  std::vector<std::string> texts;
  for (int32_t id = 0; id < (*tokenizer)->size(); ++id) {
    const std::string* token = (*tokenizer)->ForDecoder(id);
    const bool has_text = token != nullptr && !(*tokenizer)->IsSpecial(id);
    texts.push_back(has_text ? (*tokenizer)->decoder().Bytes(*token) : "");
  }
  return texts;
}

}  // namespace ovq::constraint::test
