// PlaceGraph: the places of one automaton that were asked for, and what leads from one to another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "model/constraint/stacks.h"
#include "model/constraint/vocabulary.h"

namespace ovq::constraint {

struct TokenMask;
struct PlaceNode;

// A place in a text of the language; a value that may be copied freely, and outlives caches and
// Matchers. Another Matcher of the same automaton may go on with it.
class Place {
 public:
  bool may_end() const;    // the text so far is one of the language
  bool may_go_on() const;  // some text follows

 private:
  friend class Matcher;
  friend class PlaceGraph;
  explicit Place(std::shared_ptr<PlaceNode> node) : node_(std::move(node)) {}

  std::shared_ptr<PlaceNode> node_;
};

// The work of something that a graph has found. Every walk for which it is needed counts it once,
// whether the walk finds it or it is cached, so that no result depends on what is cached.
struct Charge {
  int64_t cost = 0;
  uint64_t last_walk = 0;  // that has counted it
};

// A class of characters that lead from a place to one other, `next`, or back to it: from there the
// same texts of up to 2^tier bytes lead on.
struct PlaceRun {
  ByteSet codes{};  // of Vocabulary::codes(): ASCII, and kPiece if every longer character is of it
  PlaceNode* next = nullptr;
  ByteSet dead{};  // codes that lead nowhere from the place
  Charge charge;
};

// Stacks, and what the graph of `generation` knows of them.
struct PlaceNode : std::enable_shared_from_this<PlaceNode> {
  struct Edge {
    uint8_t first, last;
    PlaceNode* to;
  };
  // Bytes whose step takes more work than the stacks let expect.
  struct HeavyEdge {
    uint8_t first, last;
    Charge charge;
  };
  // The work of a step that PlaceGraph::Next has done, at whatever time, on top of the place's.
  // Null if there is none.
  Charge* FindHeavy(uint8_t byte) {
    for (HeavyEdge& edge : heavy_edges) {
      if (edge.first <= byte && byte <= edge.last) return &edge.charge;
    }
    return nullptr;
  }
  // Where the run of a tier lies in `runs`. Places without a count have one for all tiers.
  size_t RunIndex(int tier) const { return counts ? tier : 0; }

  Stacks stacks;
  uint64_t generation = 0;
  std::vector<Edge> edges;
  std::vector<HeavyEdge> heavy_edges;
  std::unique_ptr<std::array<PlaceNode*, 256>> table;
  bool counts = false;                          // some place may represent it
  std::vector<PlaceNode*> representatives;      // [tier], null until asked for
  std::vector<std::unique_ptr<PlaceRun>> runs;  // [RunIndex(tier)], likewise
  std::shared_ptr<const TokenMask> mask;
  bool mask_exhausted = false;
  Charge charge;  // of the steps from here
};

// Makes places, the edges between them and runs on demand, and keeps them. Nodes are its own; they
// and their runs stay where they are until Clear. One thread.
class PlaceGraph {
 public:
  explicit PlaceGraph(std::shared_ptr<const Automaton> automaton);

  PlaceNode* Begin();
  // The node of a place, which may be another graph's.
  PlaceNode* Own(const Place& place);
  // Null if the byte leads nowhere; exhausted_node() where the place would need too many stacks.
  PlaceNode* Next(PlaceNode* from, uint8_t byte);
  const PlaceNode* exhausted_node() const { return exhausted_node_.get(); }
  // A place from which the same texts of up to 2^tier bytes lead on, one for many.
  PlaceNode* Represent(PlaceNode* node, int tier);
  // The smallest tier whose texts are at least so long.
  static int FindTier(int32_t bytes);
  PlaceRun& FindRun(PlaceNode* node, int tier);
  // Drops all. Places that are held keep their stacks and nothing else.
  void Clear();
  size_t bytes() const { return bytes_ + machine_->bytes(); }
  int64_t n_steps() const { return n_steps_; }  // calls of Next

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(const std::shared_ptr<PlaceNode>& node) const;
    size_t operator()(const Stacks& stacks) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const std::shared_ptr<PlaceNode>& a, const std::shared_ptr<PlaceNode>& b) const;
    bool operator()(const std::shared_ptr<PlaceNode>& a, const Stacks& b) const;
  };

  PlaceNode* Intern(Stacks stacks);
  // Next, where it is not known.
  PlaceNode* Expand(PlaceNode* from, uint8_t byte);
  std::array<uint64_t, 2> FindAsciiClass(PlaceNode* node);
  bool LeadsOverUtf8(PlaceNode* from, int tier, const PlaceNode* to, int row, int column,
                     int64_t& n_steps, int64_t& cost);

  std::shared_ptr<const Automaton> automaton_;
  size_t bytes_ = 0;
  int64_t n_steps_ = 0;
  uint64_t generation_;  // no two of the process are equal
  std::optional<StackMachine> machine_;
  absl::flat_hash_set<std::shared_ptr<PlaceNode>, Hash, Equal> nodes_;
  std::shared_ptr<PlaceNode> unknown_node_, exhausted_node_;  // marks of a table
};

}  // namespace ovq::constraint
