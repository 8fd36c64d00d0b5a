// The files a tokenizer is read from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/bpe.h"
#include "model/tokenizers/vocab.h"

namespace ovq {

// tokenizer.json with its two long parts, model.vocab and model.merges, read straight into lists:
// as JSON values they take many times their size.
struct TokenizerFile {
  nlohmann::json rest = nlohmann::json::object();  // the file without them
  Vocab::Entries vocab;                            // ids in [0, vocab_size) where `beyond` is OK
  Bpe::MergeList merges;
  absl::Status beyond;  // InvalidArgument: names the first token with a larger id

  // DataLoss: not UTF-8 or not JSON, duplicate keys. InvalidArgument: vocab or merges are missing
  // or have another form. Messages have the path inside the file.
  static absl::StatusOr<TokenizerFile> Parse(std::string_view text, int64_t vocab_size);
};

// The two files of GPT-2's older form: vocab.json, an object of ids by token, and merges.txt, a
// merge a line.
absl::StatusOr<Vocab::Entries> ParseVocab(std::string_view text, int64_t vocab_size);
absl::StatusOr<Bpe::MergeList> ParseMerges(std::string_view text);

}  // namespace ovq
