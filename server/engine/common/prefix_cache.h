// Caches states after prefixes of prompts, so that a prefix that many prompts share is prefilled
// once.
//
// A prefix is a number of whole blocks of tokens, counted from a sequence's first token. Its key is
// the SHA-256 of the key of the prefix that is a block shorter and of the last block's tokens; the
// chain begins with tenant, model variant and slot cap. Equal keys mean the same tokens consumed in
// the same way, hence the same state to the byte; and no tenant uses, or can find out about,
// another's prefixes.
//
// A prompt leaves a copy of the state after its last whole block, and one where it diverges from
// earlier prompts. So a shared prefix of any length is reused from its third prompt on.
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

#include "server/engine/common/engine_config.h"
#include "server/engine/common/state_pool.h"

namespace ovq {

inline constexpr int64_t kPrefixBlockTokens = 256;
// Upper bound of a block's bytes in the budget, without copies of states.
inline constexpr size_t kPrefixBlockBytes = 320;

// One prompt's use of the cache.
struct PrefixRun {
  std::vector<std::string> chain;  // keys of its prefixes of 1, 2, ... blocks
  std::vector<size_t> stops;       // blocks after which a copy is due; the next one is last

  int64_t next_stop() const {  // in tokens
    if (stops.empty()) return std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(stops.back()) * kPrefixBlockTokens;
  }
};

// Engine thread only.
class PrefixCache {
 public:
  // A budget of 0 disables the cache and its statistics.
  PrefixCache(size_t budget_bytes, StatePool& pool) : pool_(pool) {
    stats_.budget_bytes = budget_bytes;
  }

  // Restores the state, which must be at position 0, to the end of the longest cached prefix of
  // `tokens`: the cacheable part of a prompt, without the prompt's last token, which always runs.
  PrefixRun Begin(const std::string& tenant, const ModelVariant& variant,
                  std::span<const int32_t> tokens, StateHandle& state);
  // Stores a copy of the state, which must be at the run's next stop. Evicts the least recently
  // used copies; a copy larger than the whole budget is not made.
  void Keep(PrefixRun& run, const StateHandle& state);

  // Drops the copies of all prefixes of the run's prompt.
  void Forget(const PrefixRun& run);

  const PrefixStats& stats() const { return stats_; }

 private:
  // A prefix that has a copy, or that a longer one with a copy continues.
  struct Node {
    const std::string* key = nullptr;
    Node* parent = nullptr;              // the prefix a block shorter; null for one block
    int children = 0;                    // number of prefixes a block longer
    std::unique_ptr<std::byte[]> bytes;  // StatePool::CopyOut of `size` bytes; null: no copy
    size_t size = 0;
    std::list<Node*>::iterator use;  // in by_use_, if it has a copy
  };

  Node& FindOrAdd(std::span<const std::string> chain);  // the last node; adds missing ones
  void EvictOne();
  void Drop(Node* node);  // drops its copy, and nodes that become unused

  StatePool& pool_;
  std::unordered_map<std::string, Node> nodes_;
  std::list<Node*> by_use_;  // nodes with a copy, most recently used first
  PrefixStats stats_;
};

}  // namespace ovq
