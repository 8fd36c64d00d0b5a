#include "server/engine/common/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/sha256.h"

namespace ovq::engine {
namespace {

std::string MakeScope(const std::string& tenant, const ModelVariant& variant, int32_t slot_cap) {
  Sha256 scope;
  scope.AddText(tenant);
  scope.AddText(variant.fingerprint);
  scope.AddText(variant.name);
  scope.Add(&slot_cap, sizeof(slot_cap));
  return scope.Hex();
}

// The number of tokens with which both begin.
size_t CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

PrefixRun PrefixCache::Begin(const std::string& tenant, const ModelVariant& variant,
                             std::span<const int32_t> tokens, int64_t shared, StateHandle& state) {
  PrefixRun run;
  if (store_.budget_bytes() == 0) return run;
  if (std::ssize(tokens) < kPrefixMinTokens) {
    CountNotKept(PrefixLoss::kTooShort);
    return run;
  }
  ++stats_.queries;
  run.scope = MakeScope(tenant, variant, state.slot_cap);
  run.prompt_end = std::ssize(tokens);
  const Path path = Follow(run.scope, tokens);
  Node* const from = LastCopy(path.node);
  // If the system has no memory here, the prefill fails with the error.
  if (from != nullptr && pool_.CopyIn(state, from->copy->position, from->copy->span()).ok()) {
    ++stats_.hits[static_cast<size_t>(from->kind)];
    stats_.cached_tokens[static_cast<size_t>(from->kind)] += state.position;
    for (Node* node = from->parent; (node = LastCopy(node)) != nullptr; node = node->parent) {
      if (node->kind == PrefixKind::kShared) MoveToEnd(*node);
    }
    MoveToEnd(*from);
    if (std::exchange(from->used, true)) from->kind = PrefixKind::kShared;
  }
  stats_.lost_tokens += path.met - state.position;
  if (path.met < run.prompt_end) SupersedeAnswers(path.node);
  PlanStops(run, state, shared, path.met);
  return run;
}

PrefixCache::Path PrefixCache::Follow(const std::string& scope, std::span<const int32_t> tokens) {
  Path path;
  const auto root = roots_.find(scope);
  if (root == roots_.end()) return path;
  path.node = &root->second;
  while (!tokens.empty()) {
    const auto next = path.node->next.find(tokens.front());
    if (next == path.node->next.end()) return path;
    Node& node = *next->second;
    const size_t n = CommonTokens(tokens, node.edge);
    path.met += static_cast<int64_t>(n);
    if (n < node.edge.size()) return path;
    path.node = &node;
    tokens = tokens.subspan(n);
  }
  return path;
}

bool PrefixCache::IsWorthIt(const StateHandle& state, int64_t before, int64_t position) const {
  const size_t bytes = state.layout->live_bytes_at(position, state.slot_cap);
  return position >= kPrefixMinTokens && position > before &&
         static_cast<size_t>(position - before) >= bytes / kPrefixBytesPerToken;
}

void PrefixCache::PlanStops(PrefixRun& run, const StateHandle& state, int64_t shared, int64_t met) {
  int64_t before = run.copied_at = state.position;
  for (const int64_t position : {std::min(shared, met), std::max(shared, met)}) {
    if (position >= run.prompt_end || position - before < kPrefixMinTokens) continue;
    if (!IsWorthIt(state, before, position)) continue;
    run.stops.push_back({position, PrefixKind::kShared});
    before = position;
  }
  if (IsWorthIt(state, before, run.prompt_end)) {
    run.stops.push_back(
        {run.prompt_end, shared >= run.prompt_end ? PrefixKind::kShared : PrefixKind::kPrompt});
  } else if (before < run.prompt_end) {
    CountNotKept(PrefixLoss::kTooShort);
  }
  std::ranges::reverse(run.stops);
}

void PrefixCache::Keep(PrefixRun& run, std::span<const int32_t> tokens, const StateHandle& state) {
  const PrefixRun::Stop stop = run.stops.back();
  run.stops.pop_back();
  run.copied_at = stop.position;
  Put(run, stop.kind, tokens, state);
}

void PrefixCache::KeepAnswer(PrefixRun& run, std::span<const int32_t> tokens,
                             const StateHandle& state) {
  if (!IsWorthIt(state, run.copied_at, state.position)) return CountNotKept(PrefixLoss::kTooShort);
  Put(run, PrefixKind::kAnswer, tokens, state);
}

void PrefixCache::CountNotKept(PrefixLoss why) {
  if (store_.budget_bytes() > 0) ++stats_.not_kept[static_cast<size_t>(why)];
}

void PrefixCache::Put(const PrefixRun& run, PrefixKind kind, std::span<const int32_t> tokens,
                      const StateHandle& state) {
  // A root, this node, and one where its edge parts from another's.
  const size_t needed =
      pool_.SnapshotBytes(state) + 3 * kPrefixNodeBytes + tokens.size() * sizeof(int32_t);
  if (needed > store_.budget_bytes()) return CountNotKept(PrefixLoss::kNoMemory);
  Node& node = FindOrAdd(run.scope, tokens);
  if (node.copy != nullptr) return;  // a concurrent prompt has stored it
  node.copy = store_.Copy(state);
  if (node.copy == nullptr) {
    Prune(&node);
    return CountNotKept(PrefixLoss::kNoMemory);
  }
  node.kind = kind;
  node.used = false;
  node.place = by_use_.insert(by_use_.end(), &node);
  if (kind != PrefixKind::kShared) Supersede(run, node);
  while (bytes() > store_.budget_bytes() && by_use_.front() != &node) {
    Drop(*by_use_.front());
    ++stats_.evictions;
  }
  if (bytes() <= store_.budget_bytes()) return;
  Drop(node);  // nodes of its own path take the room
  CountNotKept(PrefixLoss::kNoMemory);
}

void PrefixCache::Supersede(const PrefixRun& run, const Node& node) {
  for (Node* earlier = node.parent; (earlier = LastCopy(earlier)) != nullptr;
       earlier = earlier->parent) {
    const bool superseded = earlier->kind != PrefixKind::kShared && earlier->end != run.prompt_end;
    if (superseded) MoveToFront(*earlier);
  }
}

void PrefixCache::SupersedeAnswers(Node* node) {
  if (node == nullptr) return;
  for (const auto& [first, answer] : node->next) {
    if (answer->next.empty() && answer->kind == PrefixKind::kAnswer) MoveToFront(*answer);
  }
}

PrefixCache::Node* PrefixCache::LastCopy(Node* node) {
  while (node != nullptr && node->copy == nullptr) node = node->parent;
  return node;
}

PrefixCache::Node& PrefixCache::FindOrAdd(const std::string& scope,
                                          std::span<const int32_t> tokens) {
  static_assert(sizeof(std::pair<const std::string, Node>) + 64 + 14 * sizeof(void*) <=
                kPrefixNodeBytes);  // a scope's digits, overhead of allocator and containers
  const auto [root, is_new] = roots_.try_emplace(scope);
  if (is_new) {
    root->second.scope = &root->first;
    ++nodes_;
  }
  const Path path = Follow(scope, tokens);
  if (path.met == path.node->end && path.met < std::ssize(tokens)) {
    return AddBehind(*path.node, tokens.subspan(static_cast<size_t>(path.met)));
  }
  if (path.met == path.node->end) return *path.node;
  // The tokens end, or part from the tree, within the edge of one node.
  const auto within = static_cast<size_t>(path.met - path.node->end);
  const int32_t first = tokens[static_cast<size_t>(path.node->end)];
  Split(*path.node->next.at(first), within);
  Node& middle = *path.node->next.at(first);
  if (path.met == std::ssize(tokens)) return middle;
  return AddBehind(middle, tokens.subspan(static_cast<size_t>(path.met)));
}

PrefixCache::Node& PrefixCache::AddBehind(Node& parent, std::span<const int32_t> edge) {
  auto node = std::make_unique<Node>(Node{
      .parent = &parent, .end = parent.end + std::ssize(edge), .edge = {edge.begin(), edge.end()}});
  ++nodes_;
  tokens_ += edge.size();
  return *(parent.next[edge.front()] = std::move(node));
}

void PrefixCache::Split(Node& node, size_t n_tokens) {
  const std::vector<int32_t> edge = std::move(node.edge);
  const std::span<const int32_t> all = edge;
  Node& parent = *node.parent;
  std::unique_ptr<Node> later = std::move(parent.next.at(edge.front()));
  tokens_ -= n_tokens;  // AddBehind counts them again
  Node& middle = AddBehind(parent, all.first(n_tokens));
  later->parent = &middle;
  later->edge.assign(all.begin() + static_cast<std::ptrdiff_t>(n_tokens), all.end());
  middle.next[all[n_tokens]] = std::move(later);
}

void PrefixCache::Forget(const PrefixRun& run, std::span<const int32_t> tokens) {
  Node* node = LastCopy(Follow(run.scope, tokens).node);
  while (node != nullptr) {
    Node* const earlier = LastCopy(node->parent);
    Drop(*node);
    node = earlier;
  }
}

void PrefixCache::Drop(Node& node) {
  node.copy.reset();
  by_use_.erase(node.place);
  Prune(&node);
}

void PrefixCache::Prune(Node* node) {
  while (node->copy == nullptr && node->next.empty()) {
    --nodes_;
    tokens_ -= node->edge.size();
    if (node->parent == nullptr) {
      roots_.erase(roots_.find(*node->scope));
      return;
    }
    Node* const parent = node->parent;
    parent->next.erase(parent->next.find(node->edge.front()));
    node = parent;
  }
  const bool passed_through =
      node->copy == nullptr && node->next.size() == 1 && node->parent != nullptr;
  if (!passed_through) return;
  --nodes_;
  std::unique_ptr<Node> next = std::move(node->next.begin()->second);
  next->edge.insert(next->edge.begin(), node->edge.begin(), node->edge.end());
  next->parent = node->parent;
  node->parent->next.at(next->edge.front()) = std::move(next);  // ends the node
}

PrefixStats PrefixCache::stats() const {
  PrefixStats stats = stats_;
  stats.bytes = bytes();
  stats.budget_bytes = store_.budget_bytes();
  return stats;
}

}  // namespace ovq::engine
