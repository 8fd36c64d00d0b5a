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
    uint8_t byte;         // of the edge to it
    int32_t depth;        // bytes from the root; at least 1
    int32_t end;          // the first node behind its descendants
    int32_t first_token;  // in order(): its tokens, then those of its descendants
    int32_t n_tokens;     // its own
    int32_t below;        // in sets(): what its descendants add; -1 without descendants
  };
  // The bytes of a node's descendants.
  struct Set {
    ByteSet bytes;
    // Whatever a token adds behind the node is UTF-8 that is complete.
    bool is_utf8;
    bool operator==(const Set&) const = default;
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const Set> sets() const { return sets_; }
  // All tokens with a text, ascending by it.
  std::span<const int32_t> order() const { return order_; }
  // The tokens without a text, ends among them, ascending.
  std::span<const int32_t> without_text() const { return without_text_; }
  int32_t max_depth() const { return max_depth_; }
  // The first token in order() behind the node's descendants.
  int32_t TokensEnd(int32_t node) const {
    const int32_t end = nodes_[node].end;
    return end < static_cast<int32_t>(nodes_.size()) ? nodes_[end].first_token
                                                     : static_cast<int32_t>(order_.size());
  }
  size_t bytes() const;  // of memory

 private:
  void AddNodes();
  void AddSets();

  std::string bytes_;             // of all tokens, by id
  std::vector<uint32_t> begins_;  // [vocab + 1]
  std::vector<int32_t> ends_;
  std::vector<int32_t> order_, without_text_;
  std::vector<Node> nodes_;
  std::vector<Set> sets_;
  int32_t max_depth_ = 0;
};

}  // namespace ovq::constraint
