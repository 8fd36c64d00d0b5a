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
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/engine/common/engine_config.h"
#include "server/engine/common/snapshot_store.h"
#include "server/engine/common/state_pool.h"

namespace ovq::engine {

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
  PrefixCache(size_t budget_bytes, StatePool& pool) : store_(budget_bytes, pool), pool_(pool) {}

  // Restores the state, which must be at position 0, to the end of the longest cached prefix of
  // `tokens`: the cacheable part of a prompt, without the prompt's last token, which always runs.
  PrefixRun Begin(const std::string& tenant, const ModelVariant& variant,
                  std::span<const int32_t> tokens, StateHandle& state);
  // Stores a copy of the state, which must be at the run's next stop. Evicts the least recently
  // used copies; a copy larger than the whole budget is not made.
  void Keep(PrefixRun& run, const StateHandle& state);

  // Drops the copies of all prefixes of the run's prompt.
  void Forget(const PrefixRun& run);

  PrefixStats stats() const;

 private:
  // A prefix that has a copy, or that a longer one with a copy continues.
  struct Node {
    const std::string* key = nullptr;
    Node* parent = nullptr;  // the prefix a block shorter; null for one block
    int uses = 0;            // its copy, and the prefixes a block longer
  };

  size_t bytes() const { return store_.bytes() + nodes_.size() * kPrefixBlockBytes; }
  Node& FindOrAdd(std::span<const std::string> chain);  // the last node; adds missing ones
  // Follows the loss of a prefix's copy: drops nodes that are of no use now.
  void Unlink(const std::string& key);

  SnapshotStore store_;  // under the prefixes' keys
  StatePool& pool_;
  std::unordered_map<std::string, Node> nodes_;
  PrefixStats stats_;  // without its bytes
};

}  // namespace ovq::engine
