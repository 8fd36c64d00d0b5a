// Added tokens: found in the text before the model sees it, and never cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/tokenizers/json_fields.h"
#include "model/tokenizers/normalizer.h"
#include "model/tokenizers/vocab.h"

namespace ovq {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // not where a word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // is looked for in normalized text
  bool special = false;      // has no text unless asked for
  bool operator==(const AddedToken&) const = default;
};

// Which of several strings begins at a place, the longest one: a trie of their bytes.
class StringTrie {
 public:
  void Add(std::string_view string, uint32_t value);  // the first of equal ones stays
  struct Match {
    size_t begin, end;
    uint32_t value;
  };
  // The first match at `from` or behind, the longest that begins there. False if there is none.
  bool Find(std::string_view text, size_t from, Match& match) const;

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  bool LongestAt(std::string_view text, size_t at, Match& match) const;

  std::vector<uint32_t> values_ = {kNone};             // of each node; node 0 is the root
  absl::flat_hash_map<uint64_t, uint32_t> children_;   // by node << 8 | byte
  std::vector<bool> begins_ = std::vector<bool>(256);  // bytes that begin a string
};

// A part of a text: an added token, or text between.
struct TextPart {
  std::string_view text;
  int32_t id = -1;  // -1: text
};

// Immutable; any thread.
class AddedTokens {
 public:
  // The list `key` of the file; it may be absent. Errors: fields that are missing or wrong, ids
  // that are not below vocab_size, tokens that contradict the vocabulary or each other.
  static absl::StatusOr<AddedTokens> Read(JsonFields& file, std::string_view key,
                                          const Vocab& vocab, int64_t vocab_size,
                                          const Normalizer& normalizer);

  // Cuts valid UTF-8 at the tokens that are looked for in normalized text, or at the others;
  // leftmost and longest first. Appends the parts, none empty.
  void Cut(std::string_view text, bool normalized, std::vector<TextPart>& parts) const;

  const AddedToken* Find(int64_t id) const;  // null if there is none
  const AddedToken* Find(std::string_view content) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  absl::Status Add(AddedToken token, const std::string& path, const Vocab& vocab);
  absl::Status FillTries(const Normalizer& normalizer);

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<int32_t, uint32_t> by_id_;
  absl::flat_hash_map<std::string, uint32_t> by_content_;
  StringTrie raw_, normalized_;  // values: places in tokens_
};

}  // namespace ovq
