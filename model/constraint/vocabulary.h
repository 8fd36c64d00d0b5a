// Vocabulary: the tokens' bytes as a trie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::constraint {

using ByteSet = std::array<uint64_t, 4>;  // bit byte % 64 of word byte / 64

// Immutable; one for each loaded tokenizer, shared by all threads.
class Vocabulary {
 public:
  // texts: [vocab], the bytes that each token adds to an answer; "" for a token that no constraint
  // allows (special tokens without a text). ends: tokens that end an answer, ascending; they are
  // allowed where a text may end, whatever their bytes.
  Vocabulary(std::span<const std::string> texts, std::vector<int32_t> ends);

  int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  // The token's bytes; "" for ends.
  std::string_view Text(int32_t token) const {
    return std::string_view(bytes_).substr(begins_[token], begins_[token + 1] - begins_[token]);
  }
  const std::vector<int32_t>& ends() const { return ends_; }

  // A node of the trie, in preorder: its descendants follow it. The root is not a node.
  struct Node {
    uint8_t byte;    // of the edge to it
    uint8_t offset;  // the bytes before it of a character that they do not complete
    int32_t depth;   // bytes from the root; at least 1
    int32_t reach;   // the most bytes that a token adds behind it
  };
  std::span<const Node> nodes() const { return nodes_; }
  // More of nodes, each by itself because much of it is read in a row. [node]: the first node
  // behind its descendants.
  std::span<const int32_t> behind() const { return behind_; }
  // [nodes + 1]: the first in order() of its tokens, which are followed by those of the next node.
  std::span<const int32_t> first_tokens() const { return first_tokens_; }
  // [node]: its byte where that is a character, kPiece in a longer character, and kNoUtf8 where the
  // bytes up to there do not begin UTF-8, or begin more than kMaxChars characters of it.
  std::span<const uint8_t> codes() const { return codes_; }
  static constexpr uint8_t kPiece = 0x80, kNoUtf8 = 0x81;
  static constexpr uint8_t kMaxChars = 250;
  // [node]: the characters that the bytes up to there begin, if their code is not kNoUtf8.
  std::span<const uint8_t> chars() const { return chars_; }
  // [ceil(nodes / 64)]: the largest of 64 nodes.
  std::span<const uint8_t> most_chars() const { return most_chars_; }
  // All tokens with a text, ascending by it.
  std::span<const int32_t> order() const { return order_; }
  // The tokens without a text, ends among them, ascending.
  std::span<const int32_t> without_text() const { return without_text_; }
  int32_t max_depth() const { return max_depth_; }
  size_t bytes() const;  // of memory

 private:
  void AddNodes();
  void AddCharacters();
  void AddReaches();

  std::string bytes_;             // of all tokens, by id
  std::vector<uint32_t> begins_;  // [vocab + 1]
  std::vector<int32_t> ends_;
  std::vector<int32_t> order_, without_text_;
  std::vector<Node> nodes_;
  std::vector<int32_t> behind_, first_tokens_;
  std::vector<uint8_t> codes_, chars_, most_chars_;
  int32_t max_depth_ = 0;
};

}  // namespace ovq::constraint
