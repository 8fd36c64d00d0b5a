// Matcher: which tokens may follow where, for one automaton and one vocabulary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "model/constraint/constraint.h"
#include "model/constraint/stacks.h"
#include "model/constraint/vocabulary.h"

namespace ovq::constraint {

struct TokenMask {
  std::vector<uint32_t> bits;  // [ceil(vocab / 32)]: bit id % 32 of word id / 32
  int64_t n_allowed = 0;
  int32_t only = -1;  // the token, if n_allowed = 1
  bool Allows(int32_t id) const { return (bits[id / 32] >> (id % 32) & 1) != 0; }
};

// A place in a text of the language; a value that may be copied freely, and outlives caches and
// Matchers. Another Matcher of the same automaton may go on with it.
class Place {
 public:
  bool may_end() const;    // the text so far is one of the language
  bool may_go_on() const;  // some text follows

 private:
  friend class Matcher;
  struct Node;
  struct Run;
  explicit Place(std::shared_ptr<Node> node) : node_(std::move(node)) {}

  std::shared_ptr<Node> node_;
};

// Makes places and masks on demand and keeps them, within `cache_bytes` before each call; a call
// adds at most some MB. One thread, but Places may end on others.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const Vocabulary> vocabulary,
          size_t cache_bytes);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  Place Begin();
  // The place behind the token's bytes, or behind a text; nothing if the language has none there,
  // or for a token without bytes, which those that end an answer are. Also nothing, with
  // exhausted(), where the grammar is so ambiguous that a place would need more than kMaxStacks
  // stacks.
  std::optional<Place> Advance(const Place& place, int32_t token);
  std::optional<Place> Advance(const Place& place, std::string_view text);
  // Never null. Allowed are the tokens that Advance has a place for, and the vocabulary's ends
  // where the text may end. Bits do not depend on what is cached. None is allowed, with
  // exhausted(), where that needs too much work; without it, where the vocabulary has no token for
  // a byte that must follow.
  std::shared_ptr<const TokenMask> Mask(const Place& place);
  // The last call failed because the grammar is too ambiguous there.
  bool exhausted() const { return exhausted_; }
  size_t bytes() const;  // held by caches
  int64_t n_masks_computed() const { return n_masks_computed_; }
  // Places that were looked up behind a byte, known ones included: a measure of the work so far.
  int64_t n_steps() const { return n_steps_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(const std::shared_ptr<Place::Node>& node) const;
    size_t operator()(const Stacks& stacks) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const std::shared_ptr<Place::Node>& a,
                    const std::shared_ptr<Place::Node>& b) const;
    bool operator()(const std::shared_ptr<Place::Node>& a, const Stacks& b) const;
  };
  using Ranges = std::vector<std::pair<int32_t, int32_t>>;  // of Vocabulary::order()

  void MakeRoom();
  Place::Node* Own(const Place& place);
  Place::Node* Intern(Stacks stacks);
  // Null if the byte leads nowhere; exhausted_node_ where the place would have too many stacks.
  Place::Node* Next(Place::Node* from, uint8_t byte);
  Place::Node* Expand(Place::Node* from, uint8_t byte);
  // A place from which the same texts of up to 2^tier bytes lead on, one for many.
  Place::Node* Represent(Place::Node* node, int tier);
  std::array<uint64_t, 2> FindAsciiClass(Place::Node* node);
  const Place::Run& FindRun(Place::Node* node, int tier);
  bool LeadsOverUtf8(Place::Node* from, int tier, const Place::Node* to, int row, int column,
                     int64_t& n_steps, int64_t& cost);
  // A node of the trie with a place, whose descendants are being walked.
  struct Level {
    int32_t end;         // behind its descendants
    Place::Node* place;  // behind its bytes
    // Descendants up to `n_chars` characters below it, all with one of `codes`, are allowed. The
    // run is that of the level's place; null for none.
    const Place::Run* run = nullptr;
    ByteSet codes{};
    int32_t n_chars = 0;
    uint8_t begun = 0;  // Vocabulary::chars() of it
    int tier = 0;       // of the run
    // Bit node % 64 of word node / 64: whether its code is another. Null if that has not been worth
    // finding for the whole vocabulary.
    const uint64_t* others = nullptr;
    ByteSet dead{};          // codes that lead nowhere from the places of the run
    bool ends_text = false;  // nothing leads on from the last of them
  };
  void Enter(int32_t trie_node, Place::Node* place);
  // False where the walk is too much work.
  bool Pay(Place::Node* place);
  const uint64_t* FindOthers(int32_t trie_node, const Level& level);
  int32_t PassRun(const Level& level, int32_t trie_node, Ranges& allowed) const;
  int32_t FindOther(const Level& level, int32_t trie_node) const;
  Place::Node* FindParentPlace(const Level& level, int32_t trie_node);
  bool Walk(Place::Node* start, Ranges& allowed);
  std::shared_ptr<const TokenMask> MakeMask(const Ranges& allowed, bool may_end) const;

  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  size_t cache_bytes_;
  size_t bytes_ = 0;
  bool exhausted_ = false;
  int64_t n_masks_computed_ = 0;
  int64_t n_steps_ = 0;
  uint64_t generation_ = 0;  // of the cache; no two of the process are equal
  uint64_t walk_ = 0;
  int64_t walk_cost_ = 0, run_cost_ = 0;
  std::optional<StackMachine> machine_;
  absl::flat_hash_set<std::shared_ptr<Place::Node>, Hash, Equal> nodes_;
  std::shared_ptr<Place::Node> unknown_node_, exhausted_node_;  // marks of a table
  absl::flat_hash_map<ByteSet, std::vector<uint64_t>> others_;  // Level::others, by its codes
  std::vector<Level> levels_;                                   // of a walk, from the root
};

}  // namespace ovq::constraint
