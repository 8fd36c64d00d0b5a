#include "server/engine/common/prefix_cache.h"

#include <new>
#include <utility>

#include "base/out_of_memory.h"
#include "base/sha256.h"

namespace ovq {
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
  if (stats_.budget_bytes == 0) return run;
  run.chain = HashChain(tenant, variant, state.slot_cap, tokens);
  if (run.chain.empty()) return run;
  ++stats_.queries;
  Node* longest = nullptr;
  size_t met = 0, taken = 0;  // blocks
  while (met < run.chain.size()) {
    const auto found = nodes_.find(run.chain[met]);
    if (found == nodes_.end()) break;
    ++met;
    if (found->second.bytes == nullptr) continue;
    longest = &found->second;
    taken = met;
  }
  const int64_t position = static_cast<int64_t>(taken) * kPrefixBlockTokens;
  // If the system has no memory here, the prefill fails with the error.
  if (longest != nullptr &&
      pool_.CopyIn(state, position, std::span(longest->bytes.get(), longest->size)).ok()) {
    by_use_.splice(by_use_.begin(), by_use_, longest->use);
    ++stats_.hits;
    stats_.cached_tokens += position;
  }
  if (taken < run.chain.size()) run.stops.push_back(run.chain.size());
  if (taken < met && met < run.chain.size()) run.stops.push_back(met);
  return run;
}

void PrefixCache::Keep(PrefixRun& run, const StateHandle& state) {
  const std::span chain = std::span(run.chain).first(run.stops.back());
  run.stops.pop_back();
  const size_t size = pool_.SnapshotBytes(state);
  const size_t most = size + chain.size() * kPrefixBlockBytes;  // if it shares no block
  if (most > stats_.budget_bytes) return;
  if (const auto found = nodes_.find(chain.back());
      found != nodes_.end() && found->second.bytes != nullptr) {
    return;  // a concurrent prompt has stored it
  }
  std::unique_ptr<std::byte[]> bytes;
  {
    const AllocationsMayFail scope;
    bytes.reset(new (std::nothrow) std::byte[size]);
  }
  if (bytes == nullptr) return;
  while (stats_.bytes + most > stats_.budget_bytes) EvictOne();
  Node& node = FindOrAdd(chain);
  node.size = size;
  node.bytes = std::move(bytes);
  pool_.CopyOut(state, std::span(node.bytes.get(), size));
  node.use = by_use_.insert(by_use_.begin(), &node);
  stats_.bytes += size;
}

PrefixCache::Node& PrefixCache::FindOrAdd(std::span<const std::string> chain) {
  static_assert(sizeof(std::pair<const std::string, Node>) + kKeyBytes + 12 * sizeof(void*) <=
                kPrefixBlockBytes);  // allocator and container overhead included
  Node* node = nullptr;
  for (const std::string& key : chain) {
    const auto [at, is_new] = nodes_.try_emplace(key);
    if (is_new) {
      at->second.key = &at->first;
      at->second.parent = node;
      if (node != nullptr) ++node->children;
      stats_.bytes += kPrefixBlockBytes;
    }
    node = &at->second;
  }
  return *node;
}

void PrefixCache::EvictOne() {
  Drop(by_use_.back());
  ++stats_.evictions;
}

void PrefixCache::Forget(const PrefixRun& run) {
  for (const std::string& key : run.chain) {
    const auto found = nodes_.find(key);
    if (found != nodes_.end() && found->second.bytes != nullptr) Drop(&found->second);
  }
}

void PrefixCache::Drop(Node* node) {
  by_use_.erase(node->use);
  stats_.bytes -= node->size;
  node->bytes.reset();
  while (node != nullptr && node->bytes == nullptr && node->children == 0) {
    Node* const parent = node->parent;
    nodes_.erase(nodes_.find(*node->key));
    stats_.bytes -= kPrefixBlockBytes;
    if (parent != nullptr) --parent->children;
    node = parent;
  }
}

}  // namespace ovq
