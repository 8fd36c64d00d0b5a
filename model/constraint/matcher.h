// Matcher: which tokens may follow where, for one automaton and one vocabulary.
#pragma once

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
#include "model/constraint/constraint.h"
#include "model/constraint/places.h"
#include "model/constraint/vocabulary.h"

namespace ovq::constraint {

struct TokenMask {
  std::vector<uint32_t> bits;  // [ceil(vocab / 32)]: bit id % 32 of word id / 32
  int64_t n_allowed = 0;
  int32_t only = -1;  // the token, if n_allowed = 1
  bool Allows(int32_t id) const { return (bits[id / 32] >> (id % 32) & 1) != 0; }
};

// Makes places and masks on demand and keeps them, within `cache_bytes` before each call; a call
// adds at most some MB. One thread, but Places may end on others.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const Vocabulary> vocabulary,
          size_t cache_bytes);
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  Place Begin();
  // The place behind the token's bytes, or behind a text; nothing if the language has none there,
  // or for a token without bytes, which those that end an answer are. Also nothing, with
  // exhausted(), where the grammar is so ambiguous that a place would need more than kMaxStacks
  // stacks or kMaxFrames frames.
  std::optional<Place> Advance(const Place& place, int32_t token);
  std::optional<Place> Advance(const Place& place, std::string_view text);
  // Never null. Allowed are the tokens that Advance has a place for, and the vocabulary's ends
  // where the text may end. Bits do not depend on what is cached. None is allowed, with
  // exhausted(), where that needs too much work; without it, where the vocabulary has no token for
  // a byte that must follow.
  std::shared_ptr<const TokenMask> Mask(const Place& place);
  // The last call failed because the grammar is too ambiguous there.
  bool exhausted() const { return exhausted_; }
  size_t bytes() const { return bytes_ + graph_.bytes(); }  // held by caches
  int64_t n_masks_computed() const { return n_masks_computed_; }
  // Places that were looked up behind a byte, known ones included: a measure of the work so far.
  int64_t n_steps() const { return graph_.n_steps(); }

 private:
  using Ranges = std::vector<std::pair<int32_t, int32_t>>;  // of Vocabulary::order()

  void MakeRoom();
  // A node of the trie with a place, whose descendants are being walked.
  struct Level {
    int32_t end;       // behind its descendants
    PlaceNode* place;  // behind its bytes
    // Descendants up to `n_chars` characters below it, all with one of `codes`, are allowed. The
    // run is that of the level's place; null for none.
    const PlaceRun* run = nullptr;
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
  void Enter(int32_t trie_node, PlaceNode* place);
  // Counts the work of a charge, once in a walk. False where the walk is too much work.
  bool Pay(Charge& charge);
  // The graph's Next, paid for; false as for Pay.
  bool Step(PlaceNode* from, uint8_t byte, PlaceNode*& to);
  const uint64_t* FindOthers(int32_t trie_node, const Level& level);
  int32_t PassRun(const Level& level, int32_t trie_node, Ranges& allowed) const;
  int32_t FindOther(const Level& level, int32_t trie_node) const;
  PlaceNode* FindParentPlace(const Level& level, int32_t trie_node);
  bool Walk(PlaceNode* start, Ranges& allowed);
  std::shared_ptr<const TokenMask> MakeMask(const Ranges& allowed, bool may_end) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  size_t cache_bytes_;
  size_t bytes_ = 0;  // of masks and others_
  bool exhausted_ = false;
  int64_t n_masks_computed_ = 0;
  uint64_t walk_ = 0;
  int64_t walk_cost_ = 0, run_cost_ = 0;
  PlaceGraph graph_;
  absl::flat_hash_map<ByteSet, std::vector<uint64_t>> others_;  // Level::others, by its codes
  std::vector<Level> levels_;                                   // of a walk, from the root
};

}  // namespace ovq::constraint
