// Parsing of tokenizer files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/bpe.h"
#include "model/tokenizers/vocab.h"

namespace ovq::model {

// tokenizer.json, its two long parts model.vocab and model.merges parsed directly into lists: as
// JSON values they take many times their size.
struct TokenizerFile {
  nlohmann::json rest = nlohmann::json::object();  // the rest of the file
  Vocab::Entries vocab;                            // ids in [0, vocab_size) if `beyond` is OK
  Bpe::MergeList merges;
  absl::Status beyond;  // InvalidArgument naming the first token with a larger id

  // DataLoss: not UTF-8, not JSON, or duplicate keys. InvalidArgument: vocab or merges are missing
  // or malformed. Messages have the path inside the file.
  static absl::StatusOr<TokenizerFile> Parse(std::string_view text, int64_t vocab_size);
};

// GPT-2's older form: vocab.json, an object of ids by token, and merges.txt, a merge a line.
absl::StatusOr<Vocab::Entries> ParseVocab(std::string_view text, int64_t vocab_size);
absl::StatusOr<Bpe::MergeList> ParseMerges(std::string_view text);

}  // namespace ovq::model
