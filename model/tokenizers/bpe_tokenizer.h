// BpeTokenizer: a tokenizer from tokenizer.json, text to ids by its pipeline, ids to text by its
// decoder. Stages, their order and the ids are those of huggingface/tokenizers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/added_tokens.h"
#include "model/tokenizers/bpe.h"
#include "model/tokenizers/decoder.h"
#include "model/tokenizers/normalizer.h"
#include "model/tokenizers/post_processor.h"
#include "model/tokenizers/pre_tokenizer.h"
#include "model/tokenizers/tokenizer_file.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq::model {

// Immutable, except for a cache that does not affect results; any thread.
class BpeTokenizer {
 public:
  // Loads tokenizer.json, or vocab.json and merges.txt, from a folder. Every id is below
  // vocab_size. Errors name the file, the path inside it and what was expected.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Load(const std::string& folder,
                                                            int64_t vocab_size);
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Make(TokenizerFile file, int64_t vocab_size);

  // Bytes that are not UTF-8 count as U+FFFD, one for each maximal subpart of a character.
  // InvalidArgument if a pattern of the file takes too long on this text.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const;
  // Ids around a text that is a whole input, such as BOS.
  const PostProcessor& ends() const { return ends_; }

  const std::string* Token(int64_t id) const;  // null for ids without a token
  // The token in the form that decoder() takes: where that reads bytes from the byte alphabet, the
  // text of an added token is written in it.
  const std::string* ForDecoder(int64_t id) const;
  bool IsSpecial(int64_t id) const;
  int64_t size() const;                                   // number of tokens, added ones included
  std::map<int32_t, std::string> special_tokens() const;  // texts by id
  const TokenDecoder& decoder() const { return decoder_; }
  // Parts of the file that have no effect here or drop text: a sentence each, for the log.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  BpeTokenizer() = default;
  absl::Status ReadStages(JsonFields& file, int64_t vocab_size);
  absl::Status SetEnd(const TokenizerFolder::End& end, bool at_front);
  void FindOwnTexts(const Bpe::MergeList& merges);
  void Note(JsonFields& file);
  // Encodes valid UTF-8 between added tokens: those of the raw text, then those of the normalized.
  absl::Status EncodeParts(std::string_view text, bool normalized, bool at_start,
                           std::vector<int32_t>& ids) const;
  absl::Status EncodeNormalized(std::string_view text, bool at_start,
                                std::vector<int32_t>& ids) const;

  Normalizer normalizer_;
  AddedTokens added_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Bpe> bpe_;
  PostProcessor ends_;
  TokenDecoder decoder_;
  // In the byte alphabet, texts of added tokens that have letters of it only, by id.
  absl::flat_hash_map<int32_t, std::string> own_texts_;
  std::vector<std::string> notes_;
};

}  // namespace ovq::model
