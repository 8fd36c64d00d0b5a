#include "server/engine/common/prefix_cache.h"

#include <utility>

#include "base/sha256.h"

namespace ovq::engine {
namespace {

constexpr size_t kKeyBytes = 64;  // hex digits

std::vector<std::string> HashChain(const std::string& tenant, const ModelVariant& variant,
                                   int32_t slot_cap, std::span<const int32_t> tokens) {
  constexpr auto kBlock = static_cast<size_t>(kPrefixBlockTokens);
  std::vector<std::string> chain;
  Sha256 root;
  root.AddText(tenant);
  root.AddText(variant.fingerprint);
  root.AddText(variant.name);
  root.Add(&slot_cap, sizeof(slot_cap));
  std::string key = root.Hex();
  for (; tokens.size() >= kBlock; tokens = tokens.subspan(kBlock)) {
    Sha256 next;
    next.AddText(key);
    next.Add(tokens.data(), kBlock * sizeof(int32_t));
    key = next.Hex();
    chain.push_back(key);
  }
  return chain;
}

}  // namespace

PrefixRun PrefixCache::Begin(const std::string& tenant, const ModelVariant& variant,
                             std::span<const int32_t> tokens, StateHandle& state) {
  PrefixRun run;
  if (store_.budget_bytes() == 0) return run;
  run.chain = HashChain(tenant, variant, state.slot_cap, tokens);
  if (run.chain.empty()) return run;
  ++stats_.queries;
  size_t met = 0, taken = 0;  // blocks
  while (met < run.chain.size() && nodes_.contains(run.chain[met])) {
    if (!store_.Find(run.chain[met++]).empty()) taken = met;
  }
  if (taken > 0) {
    const std::string& longest = run.chain[taken - 1];
    const StateSnapshot& copy = *store_.Find(longest).front();
    // If the system has no memory here, the prefill fails with the error.
    if (pool_.CopyIn(state, copy.position, copy.span()).ok()) {
      store_.Use(longest);
      ++stats_.hits;
      stats_.cached_tokens += state.position;
    }
  }
  if (taken < run.chain.size()) run.stops.push_back(run.chain.size());
  if (taken < met && met < run.chain.size()) run.stops.push_back(met);
  return run;
}

void PrefixCache::Keep(PrefixRun& run, const StateHandle& state) {
  const std::span chain = std::span(run.chain).first(run.stops.back());
  run.stops.pop_back();
  const size_t nodes = chain.size() * kPrefixBlockBytes;  // if it shares no block
  if (pool_.SnapshotBytes(state) + nodes > store_.budget_bytes()) return;
  if (!store_.Find(chain.back()).empty()) return;  // a concurrent prompt has stored it
  std::shared_ptr<const StateSnapshot> copy = store_.Copy(state);
  if (copy == nullptr) return;
  while (bytes() + nodes > store_.budget_bytes()) {
    Unlink(store_.EvictOne());
    ++stats_.evictions;
  }
  ++FindOrAdd(chain).uses;
  store_.Put(chain.back(), {std::move(copy)});
}

PrefixCache::Node& PrefixCache::FindOrAdd(std::span<const std::string> chain) {
  static_assert(sizeof(std::pair<const std::string, Node>) + kKeyBytes + 12 * sizeof(void*) <=
                kPrefixBlockBytes);  // allocator and container overhead included
  Node* node = nullptr;
  for (const std::string& key : chain) {
    const auto [at, is_new] = nodes_.try_emplace(key, Node{.parent = node});
    if (is_new) at->second.key = &at->first;
    if (is_new && node != nullptr) ++node->uses;
    node = &at->second;
  }
  return *node;
}

void PrefixCache::Forget(const PrefixRun& run) {
  for (const std::string& key : run.chain) {
    if (store_.Find(key).empty()) continue;
    store_.Put(key, {});
    Unlink(key);
  }
}

void PrefixCache::Unlink(const std::string& key) {
  Node* node = &nodes_.find(key)->second;
  while (node != nullptr && --node->uses == 0) {
    Node* const parent = node->parent;
    nodes_.erase(nodes_.find(*node->key));
    node = parent;
  }
}

PrefixStats PrefixCache::stats() const {
  PrefixStats stats = stats_;
  stats.bytes = bytes();
  stats.budget_bytes = store_.budget_bytes();
  return stats;
}

}  // namespace ovq::engine
