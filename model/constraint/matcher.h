// Matcher: which tokens may follow where, for one automaton and one vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/constraint/constraint.h"

namespace ovq::constraint {

// The tokens' bytes as a trie. Immutable; one for each loaded tokenizer, shared by all threads.
class Vocabulary {
 public:
  // texts: [vocab], the bytes that each token adds to an answer; "" for a token that no constraint
  // allows (special tokens without a text). ends: tokens that end an answer, ascending.
  Vocabulary(std::span<const std::string> texts, std::vector<int32_t> ends);
  ~Vocabulary();
  int64_t size() const;
  std::string_view Text(int32_t token) const;
  const std::vector<int32_t>& ends() const;
  // ... the trie
};

struct TokenMask {
  std::vector<uint32_t> bits;  // [ceil(vocab / 32)]: bit id % 32 of word id / 32
  int64_t n_allowed = 0;
  int32_t only = -1;  // the token, if n_allowed = 1
  bool Allows(int32_t id) const { return (bits[id / 32] >> (id % 32) & 1) != 0; }
};

// A place in a text of the language; a value that may be copied freely, and outlives caches.
class Place {
 public:
  bool may_end() const;    // the text so far is one of the language
  bool may_go_on() const;  // some text follows
 private:
  friend class Matcher;
  struct Node;
  std::shared_ptr<const Node> node_;
};

// Makes places and masks on demand and keeps them, within `cache_bytes`. One thread.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const Vocabulary> vocabulary,
          size_t cache_bytes);
  ~Matcher();
  Place Begin();
  // The place behind the token's bytes, or behind a text; nothing if the language has none there.
  // Also nothing, with exhausted() true from then on, where the grammar is so ambiguous that a
  // place would need more than kMaxStacks stacks.
  std::optional<Place> Advance(const Place& place, int32_t token);
  std::optional<Place> Advance(const Place& place, std::string_view text);
  // Never null. End tokens are allowed where the text may end. Bits do not depend on what is
  // cached.
  std::shared_ptr<const TokenMask> Mask(const Place& place);
  bool exhausted() const;
  size_t bytes() const;  // held by caches
};

}  // namespace ovq::constraint
