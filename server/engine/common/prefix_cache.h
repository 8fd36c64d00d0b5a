// Caches states after beginnings of prompts and after answers, so that what many prompts share, and
// what a conversation has said before, is prefilled once.
//
// The tokens behind copies are kept in one tree for each tenant, model variant and slot cap. Equal
// tokens consumed in the same way give the same state to the byte, so a prompt goes on from the
// longest beginning of it that has a copy; and no tenant uses, or can find out about, another's
// prefixes.
//
// A prompt leaves copies where other conversations will part from it (behind its system part, and
// where it parts from earlier prompts itself) and at its end, before the text that opens the
// answer. An answer leaves one at its end. So a conversation that is sent again with its next turn
// goes on behind the last answer, or where its history was rewritten, from the copy before that
// place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/engine/common/engine_config.h"
#include "server/engine/common/snapshot_store.h"
#include "server/engine/common/state_pool.h"

namespace ovq::engine {

// The fewest tokens behind which a state is copied, and the fewest by which prompts must agree
// beyond a copy to get another where they part.
inline constexpr int64_t kPrefixMinTokens = 64;
// A copy saves a token of prefill or more for so many of its bytes, which take less time to copy.
inline constexpr size_t kPrefixBytesPerToken = size_t{1} << 20;
// Upper bound of a tree node's bytes in the budget, beside its tokens.
inline constexpr size_t kPrefixNodeBytes = 384;

// One prompt's use of the cache.
struct PrefixRun {
  struct Stop {
    int64_t position;  // in tokens
    PrefixKind kind;
  };
  std::string scope;        // whose tree it uses; empty: it does not use the cache
  std::vector<Stop> stops;  // where copies are due; the next one is last
  int64_t prompt_end = 0;   // where the prompt's own copy stands
  int64_t copied_at = 0;    // the last copy that it began with or left

  int64_t next_stop() const {
    return stops.empty() ? std::numeric_limits<int64_t>::max() : stops.back().position;
  }
};

// Engine thread only.
class PrefixCache {
 public:
  // A budget of 0 disables the cache and its statistics.
  PrefixCache(size_t budget_bytes, StatePool& pool) : store_(budget_bytes, pool), pool_(pool) {}
  ~PrefixCache() {
    while (!by_use_.empty()) Drop(*by_use_.front());
  }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Restores the state, which must be at position 0, to the longest beginning of `tokens` that has
  // a copy. tokens: the cacheable part of a prompt, without the prompt's last token, which always
  // runs. shared: of these, the first that other conversations begin with, too; 0 if not known.
  PrefixRun Begin(const std::string& tenant, const ModelVariant& variant,
                  std::span<const int32_t> tokens, int64_t shared, StateHandle& state);
  // Stores a copy of the state, which must be at the run's next stop, behind these tokens. Evicts
  // other copies where the budget is used up: first those that longer ones of their conversations
  // have superseded, then those used longest ago. A copy larger than the whole budget is not made.
  void Keep(PrefixRun& run, std::span<const int32_t> tokens, const StateHandle& state);
  // Stores a copy of the state at the end of an answer, behind the prompt and the answer.
  void KeepAnswer(PrefixRun& run, std::span<const int32_t> tokens, const StateHandle& state);
  // Counts a copy that was not made.
  void CountNotKept(PrefixLoss why);

  // Drops the copies behind all beginnings of these tokens.
  void Forget(const PrefixRun& run, std::span<const int32_t> tokens);

  PrefixStats stats() const;

 private:
  struct Node {
    Node* parent = nullptr;
    int64_t end = 0;            // tokens from the sequence's first to the node's last
    std::vector<int32_t> edge;  // tokens behind the parent's end
    std::map<int32_t, std::unique_ptr<Node>> next = {};  // by the first token of the edge
    const std::string* scope = nullptr;                  // of a root
    std::shared_ptr<const StateSnapshot> copy = {};
    PrefixKind kind = PrefixKind::kPrompt;
    bool used = false;                      // a prompt has begun with it
    std::list<Node*>::iterator place = {};  // in by_use_, if it has a copy
  };
  // How far a tree has the tokens.
  struct Path {
    Node* node = nullptr;  // the last node whose edge they have whole; null without a tree
    int64_t met = 0;       // number of tokens in the tree
  };

  size_t bytes() const {
    return store_.bytes() + nodes_ * kPrefixNodeBytes + tokens_ * sizeof(int32_t);
  }
  Path Follow(const std::string& scope, std::span<const int32_t> tokens);
  // Whether a copy at `position` saves enough, with another at `before`.
  bool IsWorthIt(const StateHandle& state, int64_t before, int64_t position) const;
  void PlanStops(PrefixRun& run, const StateHandle& state, int64_t shared, int64_t met);
  // The node behind exactly these tokens; adds it if it is missing.
  Node& FindOrAdd(const std::string& scope, std::span<const int32_t> tokens);
  Node& AddBehind(Node& parent, std::span<const int32_t> edge);
  void Split(Node& node, size_t n_tokens);  // adds a node behind the first tokens of its edge
  void Put(const PrefixRun& run, PrefixKind kind, std::span<const int32_t> tokens,
           const StateHandle& state);
  // Makes the copies before `node` that its conversation needs no more the first to be evicted.
  void Supersede(const PrefixRun& run, const Node& node);
  // Likewise the answers behind `node` that a prompt goes on from in another way: it has most
  // likely dropped a part of them.
  void SupersedeAnswers(Node* node);
  // The nearest copy at the node or before it; null if there is none.
  static Node* LastCopy(Node* node);
  void MoveToEnd(Node& node) { by_use_.splice(by_use_.end(), by_use_, node.place); }
  void MoveToFront(Node& node) { by_use_.splice(by_use_.begin(), by_use_, node.place); }
  void Drop(Node& node);   // its copy, then as Prune
  void Prune(Node* node);  // removes it, and nodes before it, if they have no use without a copy

  SnapshotStore store_;  // memory of the copies alone, none of which has a key
  StatePool& pool_;
  std::unordered_map<std::string, Node> roots_;  // by scope
  std::list<Node*> by_use_;                      // nodes with copies, the next to be evicted first
  size_t nodes_ = 0, tokens_ = 0;                // of all trees
  PrefixStats stats_;                            // without its bytes
};

}  // namespace ovq::engine
