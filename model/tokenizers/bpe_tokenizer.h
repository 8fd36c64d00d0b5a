// A tokenizer of tokenizer.json: text to ids by its pipeline, ids to text by its decoder. The
// stages and their order are those of huggingface/tokenizers, and so are the ids.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizers/added_tokens.h"
#include "model/tokenizers/bpe.h"
#include "model/tokenizers/decoder.h"
#include "model/tokenizers/normalizer.h"
#include "model/tokenizers/post_processor.h"
#include "model/tokenizers/pre_tokenizer.h"
#include "model/tokenizers/tokenizer_file.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq {

// Immutable (but for a cache that no answer shows); any thread.
class BpeTokenizer {
 public:
  // From a folder with tokenizer.json, or vocab.json and merges.txt. Every id is below vocab_size.
  // Errors name the file, the path inside it and what was expected.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Load(const std::string& folder,
                                                            int64_t vocab_size);
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Make(TokenizerFile file, int64_t vocab_size);

  // Bytes that are not UTF-8 count as U+FFFD, one for each maximal part of a character.
  // InvalidArgument where a pattern of the file takes too long on this text.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const;
  // What stands around a text that is a whole input, BOS for example.
  const PostProcessor& ends() const { return ends_; }

  const std::string* Token(int64_t id) const;  // null for ids without one
  bool IsSpecial(int64_t id) const;
  int64_t size() const;                                   // tokens, those that were added too
  std::map<int32_t, std::string> special_tokens() const;  // texts by id
  const TokenDecoder& decoder() const { return decoder_; }
  // What the file has that has no effect here, or drops text: a sentence each, for the log.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  BpeTokenizer() = default;
  absl::Status ReadStages(JsonFields& file, int64_t vocab_size);
  absl::Status SetEnd(const TokenizerFolder::End& end, bool at_front);
  void Note(JsonFields& file);
  absl::Status EncodeValid(std::string_view text, std::vector<int32_t>& ids) const;
  absl::Status EncodeRaw(std::string_view text, bool at_start, std::vector<int32_t>& ids) const;
  absl::Status EncodeNormalized(std::string_view text, bool at_start,
                                std::vector<int32_t>& ids) const;

  Normalizer normalizer_;
  AddedTokens added_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<Bpe> bpe_;
  PostProcessor ends_;
  TokenDecoder decoder_;
  std::vector<std::string> notes_;
};

}  // namespace ovq
