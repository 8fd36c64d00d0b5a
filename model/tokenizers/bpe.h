// Bpe: the BPE model of tokenizer.json, from words to token ids.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/merges.h"
#include "model/tokenizers/vocab.h"
#include "model/tokenizers/word_cache.h"

namespace ovq::model {

// Immutable after EnableByteInput; any thread.
class Bpe {
 public:
  using MergeList = std::vector<std::pair<std::string, std::string>>;

  // Reads the options of the section `model`; vocab and merges have been parsed separately.
  static absl::StatusOr<std::unique_ptr<Bpe>> Make(JsonFields& model, Vocab vocab,
                                                   const MergeList& merges);

  // Whether the vocabulary has every byte as its character of the byte alphabet. Then
  // EnableByteInput allows words to be given as raw bytes.
  bool has_all_bytes() const { return has_all_bytes_; }
  void EnableByteInput() { byte_input_ = true; }

  // Appends the ids of a word.
  void Encode(std::string_view word, std::vector<int32_t>& ids) const;

  const Vocab& vocab() const { return vocab_; }

 private:
  explicit Bpe(Vocab vocab) : vocab_(std::move(vocab)) {}
  absl::Status ReadOptions(JsonFields& model);
  absl::Status AddMerges(const MergeList& merges);
  absl::Status AddMerge(const std::string& left, const std::string& right, size_t rank);
  void IndexChars();

  int32_t FindChar(char32_t c) const;
  int32_t FindWhole(std::string_view word) const;
  void EncodePart(std::string_view part, std::vector<int32_t>& ids) const;
  void Merge(std::string_view part, std::vector<int32_t>& ids) const;
  void AppendSymbols(std::string_view part, std::vector<int32_t>& symbols) const;
  bool AppendFallback(std::string_view c, std::vector<int32_t>& symbols) const;
  size_t FindPartEnd(std::string_view word, size_t begin) const;

  Vocab vocab_;
  Merges merges_;
  mutable WordCache cache_;
  std::string prefix_, suffix_;  // continuing_subword_prefix, end_of_word_suffix
  int32_t unk_ = -1;             // -1: unknown characters are dropped
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool has_all_bytes_ = false;
  bool byte_input_ = false;
  std::array<int32_t, 256> byte_ids_;      // token of each byte by the byte alphabet
  std::array<int32_t, 256> fallback_ids_;  // tokens <0x00> to <0xFF>, -1 if absent
  std::vector<int32_t> low_chars_;         // token of a character by code point, -1 if absent
  absl::flat_hash_map<char32_t, int32_t> high_chars_;
  // Adjacent characters inside the result of some merge, as c << 32 | d. No merge reaches across
  // two known characters that are no such pair, so a long word can be split there.
  absl::flat_hash_set<uint64_t> inner_pairs_;
  bool can_cut_ = false;
};

}  // namespace ovq::model
