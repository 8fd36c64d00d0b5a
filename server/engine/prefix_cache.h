// States behind the beginnings of prompts, so that what many prompts begin with is read once.
//
// Beginnings are whole blocks of tokens, counted from a sequence's first one. Each has a key, the
// SHA-256 of the key of the beginning that is a block shorter and of the last block's tokens; the
// chain begins with tenant, memory and slot cap. Equal keys mean the same tokens read in the same
// way, hence the same state to the byte; and no tenant meets, or can find out about, another's.
//
// A prompt leaves a copy of the state behind its last whole block, and one where it parts from
// those before it: so what prompts share is found from the third of them on, wherever it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/engine/engine_config.h"
#include "server/engine/state_pool.h"

namespace ovq {

inline constexpr int64_t kPrefixBlockTokens = 256;
// What a block on the way to a copy takes of the budget beside the copies, at most.
inline constexpr size_t kPrefixBlockBytes = 320;

// One prompt on its way through the cache.
struct PrefixRun {
  std::vector<std::string> chain;  // keys of its beginnings of 1, 2, ... blocks
  std::vector<size_t> stops;       // blocks behind which a copy is due, the next one last

  int64_t next_stop() const {  // in tokens
    if (stops.empty()) return std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(stops.back()) * kPrefixBlockTokens;
  }
};

// Engine thread only.
class PrefixCache {
 public:
  // Nothing is kept, nor counted, with a budget of 0.
  PrefixCache(size_t budget_bytes, StatePool& pool) : pool_(pool) {
    stats_.budget_bytes = budget_bytes;
  }

  // For the part of a prompt that may be cached, without the prompt's last token, which is always
  // read. Brings the state, which is at position 0, behind the longest known beginning.
  PrefixRun Begin(const std::string& tenant, const ModelVariant& memory,
                  std::span<const int32_t> tokens, StateHandle& state);
  // The state is at the run's next stop. Copies used longest ago go; a copy that the whole budget
  // could not hold is not made.
  void Keep(PrefixRun& run, const StateHandle& state);

  // The prompt's beginnings are not to be used any more.
  void Forget(const PrefixRun& run);

  const PrefixStats& stats() const { return stats_; }

 private:
  // A beginning that has a copy, or that such a one goes on from.
  struct Node {
    const std::string* key = nullptr;
    Node* parent = nullptr;              // a block shorter; null: one block
    int children = 0;                    // a block longer
    std::unique_ptr<std::byte[]> bytes;  // StatePool::CopyOut of `size` bytes; null: no copy
    size_t size = 0;
    std::list<Node*>::iterator use;  // in by_use_, if it has a copy
  };

  Node& Reach(std::span<const std::string> chain);  // makes what is missing
  void EvictOne();
  void Drop(Node* node);  // the copy of one that has it, and nodes that nothing needs then

  StatePool& pool_;
  std::unordered_map<std::string, Node> nodes_;
  std::list<Node*> by_use_;  // those with a copy, the last used first
  PrefixStats stats_;
};

}  // namespace ovq
