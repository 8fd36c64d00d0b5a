// AddedTokens: tokens that are found in the text before the model sees it, and never split.
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

namespace ovq::model {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // matches only without adjacent word characters
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = false;   // matched in normalized text
  bool special = false;      // decodes to no text unless requested
  bool operator==(const AddedToken&) const = default;
};

// Finds the longest of several strings that begins at a position; a trie of bytes.
class StringTrie {
 public:
  void Add(std::string_view string, uint32_t value);  // of equal strings the first stays
  struct Match {
    size_t begin, end;
    uint32_t value;
  };
  // Finds the leftmost match at or after `from`, the longest that begins there. False if there is
  // none.
  bool Find(std::string_view text, size_t from, Match& match) const;

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  bool LongestAt(std::string_view text, size_t at, Match& match) const;

  std::vector<uint32_t> values_ = {kNone};             // by node; node 0 is the root
  absl::flat_hash_map<uint64_t, uint32_t> children_;   // key: node << 8 | byte
  std::vector<bool> begins_ = std::vector<bool>(256);  // first bytes of the strings
};

// A part of a text: an added token or the text between two.
struct TextPart {
  std::string_view text;
  int32_t id = -1;  // -1: text
};

// Immutable; any thread.
class AddedTokens {
 public:
  // Reads the list `key` of the file, which may be absent. Special tokens with ids not below
  // vocab_size are left out, with a note: files of text models have those of pictures. A token that
  // the vocabulary has under another id gets that one, as in the library, with a note too. Errors:
  // missing or wrong fields, ids of other tokens not below vocab_size or of other words of the
  // vocabulary, tokens that contradict each other.
  static absl::StatusOr<AddedTokens> Read(JsonFields& file, std::string_view key,
                                          const Vocab& vocab, int64_t vocab_size,
                                          const Normalizer& normalizer);

  // Splits valid UTF-8 at the added tokens that match normalized text (`normalized`), or at the
  // others; leftmost, then longest first. Appends the nonempty parts.
  void Cut(std::string_view text, bool normalized, std::vector<TextPart>& parts) const;

  const AddedToken* Find(int64_t id) const;  // null if there is none
  const AddedToken* Find(std::string_view content) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  absl::Status Add(AddedToken token, const std::string& path, const Vocab& vocab);
  absl::Status FillTries(const Normalizer& normalizer);

  std::vector<AddedToken> tokens_;
  std::vector<std::string> notes_;
  absl::flat_hash_map<int32_t, uint32_t> by_id_;
  absl::flat_hash_map<std::string, uint32_t> by_content_;
  StringTrie raw_, normalized_;  // values: indices in tokens_
};

}  // namespace ovq::model
