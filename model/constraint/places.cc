#include "model/constraint/places.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "absl/hash/hash.h"
#include "base/check.h"

namespace ovq::constraint {
namespace {

// A place with more edges has a table of all bytes.
constexpr size_t kMaxEdges = 8;
// The steps from a place cost kPlaceCost and its stacks, times an eighth of the ranges of bytes
// that lead on. A step within a run costs kPlaceCost and the stacks before it; one with more than
// kFreeWork items of work for each of these stacks an eighth of the others on top. To represent a
// place costs nothing more, as it looks once at each frame, and these are work of steps.
constexpr int64_t kPlaceCost = 3, kFreeWork = 16;
constexpr int64_t kMaxRunSteps = 512;
constexpr int kMaxTier = 15;

// The characters of UTF-8 that have several bytes, as sequences of ranges.
struct Utf8Row {
  int length;
  std::array<std::pair<uint8_t, uint8_t>, 4> bytes;
};
constexpr std::array<Utf8Row, 8> kUtf8Rows = {{
    {2, {{{0xc2, 0xdf}, {0x80, 0xbf}}}},
    {3, {{{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}}},
    {3, {{{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}}},
    {3, {{{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}}},
    {3, {{{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}}},
    {4, {{{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}}},
    {4, {{{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}}},
    {4, {{{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}}},
}};

uint64_t NewGeneration() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void Add(uint8_t code, ByteSet& set) { set[code / 64] |= uint64_t{1} << code % 64; }

int64_t CountCost(const Charge* charge) { return charge == nullptr ? 0 : charge->cost; }

}  // namespace

bool Place::may_end() const { return node_->stacks.may_end; }
bool Place::may_go_on() const { return !node_->stacks.heads.empty(); }

size_t PlaceGraph::Hash::operator()(const std::shared_ptr<PlaceNode>& node) const {
  return operator()(node->stacks);
}
size_t PlaceGraph::Hash::operator()(const Stacks& stacks) const {
  size_t hash = stacks.may_end ? 1 : 0;
  for (const Head& head : stacks.heads) {
    hash = absl::HashOf(hash, head.state, head.rest.get());
  }
  return hash;
}
bool PlaceGraph::Equal::operator()(const std::shared_ptr<PlaceNode>& a,
                                   const std::shared_ptr<PlaceNode>& b) const {
  return a->stacks == b->stacks;
}
bool PlaceGraph::Equal::operator()(const std::shared_ptr<PlaceNode>& a, const Stacks& b) const {
  return a->stacks == b;
}

PlaceGraph::PlaceGraph(std::shared_ptr<const Automaton> automaton)
    : automaton_(std::move(automaton)),
      generation_(NewGeneration()),
      unknown_node_(std::make_shared<PlaceNode>()),
      exhausted_node_(std::make_shared<PlaceNode>()) {
  machine_.emplace(automaton_);
}

int PlaceGraph::FindTier(int32_t bytes) {
  return std::min<int>(std::bit_width(static_cast<uint32_t>(std::max(bytes, 1) - 1)), kMaxTier);
}

void PlaceGraph::Clear() {
  for (const std::shared_ptr<PlaceNode>& node : nodes_) {
    node->edges = {};
    node->heavy_edges = {};
    node->table = nullptr;
    node->representatives = {};
    node->runs.clear();
    node->mask = nullptr;
  }
  nodes_.clear();
  machine_.emplace(automaton_);
  generation_ = NewGeneration();
  bytes_ = 0;
}

PlaceNode* PlaceGraph::Begin() {
  Stacks stacks;
  Check(machine_->Begin(stacks), "CompileGrammar checks the first place");
  return Intern(std::move(stacks));
}

PlaceNode* PlaceGraph::Own(const Place& place) {
  PlaceNode* const node = place.node_.get();
  return node->generation == generation_ ? node : Intern(machine_->Adopt(node->stacks));
}

PlaceNode* PlaceGraph::Intern(Stacks stacks) {
  const auto found = nodes_.find(stacks);
  if (found != nodes_.end()) return found->get();
  auto node = std::make_shared<PlaceNode>();
  node->stacks = std::move(stacks);
  node->stacks.heads.shrink_to_fit();
  node->generation = generation_;
  node->counts = std::any_of(node->stacks.heads.begin(), node->stacks.heads.end(),
                             [](const Head& head) { return head.rest && head.rest->counts; });
  int64_t n_ranges = 8;
  for (const Head& head : node->stacks.heads) {
    n_ranges += static_cast<int64_t>(automaton_->ranges(head.state).size());
  }
  node->charge.cost = (kPlaceCost + static_cast<int64_t>(node->stacks.heads.size())) *
                      std::min<int64_t>(n_ranges, 256) / 8;
  bytes_ += sizeof(PlaceNode) + 64 + node->stacks.heads.size() * sizeof(Head);
  return nodes_.insert(std::move(node)).first->get();
}

PlaceNode* PlaceGraph::Next(PlaceNode* from, uint8_t byte) {
  ++n_steps_;
  if (from->table) {
    PlaceNode* const to = (*from->table)[byte];
    return to != unknown_node_.get() ? to : Expand(from, byte);
  }
  for (const PlaceNode::Edge& edge : from->edges) {
    if (edge.first <= byte && byte <= edge.last) return edge.to;
  }
  return Expand(from, byte);
}

PlaceNode* PlaceGraph::Expand(PlaceNode* from, uint8_t byte) {
  const StackMachine::Interval interval = machine_->FindInterval(from->stacks, byte);
  PlaceNode* to = nullptr;
  if (!interval.empty) {
    Stacks stacks;
    if (!machine_->Step(from->stacks, byte, stacks)) {
      to = exhausted_node_.get();
    } else if (stacks.may_end || !stacks.heads.empty()) {
      to = Intern(std::move(stacks));
    }
    const int64_t work =
        machine_->work() - kFreeWork * static_cast<int64_t>(from->stacks.heads.size());
    if (work > 0) {
      from->heavy_edges.push_back({interval.first, interval.last, {.cost = 1 + work / 8}});
      bytes_ += sizeof(PlaceNode::HeavyEdge);
    }
  }
  const auto fill = [from](uint8_t first, uint8_t last, PlaceNode* node) {
    std::fill(from->table->begin() + first, from->table->begin() + last + 1, node);
  };
  if (from->table) {
    fill(interval.first, interval.last, to);
    return to;
  }
  from->edges.push_back({interval.first, interval.last, to});
  bytes_ += sizeof(PlaceNode::Edge);
  if (from->edges.size() <= kMaxEdges) return to;
  from->table = std::make_unique<std::array<PlaceNode*, 256>>();
  from->table->fill(unknown_node_.get());
  bytes_ += sizeof(*from->table);
  for (const PlaceNode::Edge& edge : from->edges) fill(edge.first, edge.last, edge.to);
  bytes_ -= from->edges.size() * sizeof(PlaceNode::Edge);
  from->edges = {};
  return to;
}

PlaceNode* PlaceGraph::Represent(PlaceNode* node, int tier) {
  if (!node->counts || tier == kMaxTier) return node;
  if (node->representatives.empty()) {
    node->representatives.resize(kMaxTier);
    bytes_ += kMaxTier * sizeof(PlaceNode*);
  }
  PlaceNode*& representative = node->representatives[tier];
  if (representative == nullptr) {
    representative = Intern(machine_->Represent(node->stacks, int64_t{1} << tier));
  }
  return representative;
}

PlaceRun& PlaceGraph::FindRun(PlaceNode* node, int tier) {
  const size_t index = node->RunIndex(tier);
  if (index < node->runs.size() && node->runs[index]) return *node->runs[index];
  auto run = std::make_unique<PlaceRun>();
  const auto ascii = FindAsciiClass(node);
  const auto n_heads = static_cast<int64_t>(node->stacks.heads.size());
  int64_t& cost = run->charge.cost;
  cost = (n_heads + kPlaceCost) / 8;
  int64_t n_steps = 0;
  const int first = ascii[0] != 0 ? std::countr_zero(ascii[0]) : 64 + std::countr_zero(ascii[1]);
  PlaceNode* const next = first < 128 ? Next(node, static_cast<uint8_t>(first)) : nullptr;
  if (n_heads > static_cast<int64_t>(StackMachine::kMaxClassHeads)) {
    for (const PlaceNode::HeavyEdge& edge : node->heavy_edges) {
      // FindAsciiClass has stepped over all of ASCII.
      if (edge.first < 128) cost += edge.charge.cost;
    }
  } else if (first < 128) {
    cost += CountCost(node->FindHeavy(static_cast<uint8_t>(first)));
  }
  // A place without a count does not know the tier, which one with a count depends on.
  const bool leads_on = next != nullptr && next != exhausted_node_.get();
  if (leads_on && (node->counts || !next->counts)) {
    run->next = Represent(next, tier);
    run->codes = {ascii[0], ascii[1], 0, 0};
    bool over_utf8 = true;
    for (int row = 0; row < static_cast<int>(kUtf8Rows.size()) && over_utf8; ++row) {
      over_utf8 = LeadsOverUtf8(node, tier, run->next, row, 0, n_steps, cost);
    }
    if (over_utf8) Add(Vocabulary::kPiece, run->codes);
  }
  const ByteSet bytes = machine_->FindBytes(node->stacks);
  run->dead = {~bytes[0], ~bytes[1], 0, 0};
  if ((bytes[2] | bytes[3]) == 0) Add(Vocabulary::kPiece, run->dead);
  bytes_ += sizeof(PlaceRun);
  if (index >= node->runs.size()) {
    bytes_ += (index + 1 - node->runs.size()) * sizeof(node->runs[0]);
    node->runs.resize(index + 1);
  }
  return *(node->runs[index] = std::move(run));
}

// A large set of ASCII bytes that lead from the place to one other, as bits; empty if none leads
// on.
std::array<uint64_t, 2> PlaceGraph::FindAsciiClass(PlaceNode* node) {
  if (node->stacks.heads.size() <= StackMachine::kMaxClassHeads) {
    return machine_->FindAsciiClass(node->stacks);
  }
  std::array<PlaceNode*, 128> to;
  for (int byte = 0; byte < 128;) {
    const auto interval = machine_->FindInterval(node->stacks, static_cast<uint8_t>(byte));
    const int end = std::min<int>(interval.last + 1, 128);
    std::fill(to.begin() + byte, to.begin() + end, Next(node, static_cast<uint8_t>(byte)));
    byte = end;
  }
  int most = 0;
  const PlaceNode* largest = nullptr;
  for (const PlaceNode* const one : to) {
    if (one == nullptr || one == largest || one == exhausted_node_.get()) continue;
    const auto count = static_cast<int>(std::count(to.begin(), to.end(), one));
    if (count > most) {
      most = count;
      largest = one;
    }
  }
  std::array<uint64_t, 2> bytes{};
  for (size_t byte = 0; byte < to.size() && largest != nullptr; ++byte) {
    if (to[byte] == largest) bytes[byte / 64] |= uint64_t{1} << byte % 64;
  }
  return bytes;
}

// Whether the bytes of a row, from a column on, lead from `from` to `to`.
bool PlaceGraph::LeadsOverUtf8(PlaceNode* from, int tier, const PlaceNode* to, int row, int column,
                               int64_t& n_steps, int64_t& cost) {
  const auto [first, last] = kUtf8Rows[row].bytes[column];
  const bool is_last = column + 1 == kUtf8Rows[row].length;
  for (int byte = first; byte <= last;) {
    if (++n_steps > kMaxRunSteps) return false;
    PlaceNode* const next = Next(from, static_cast<uint8_t>(byte));
    cost += kPlaceCost + static_cast<int64_t>(from->stacks.heads.size());
    cost += CountCost(from->FindHeavy(static_cast<uint8_t>(byte)));
    if (next == nullptr || next == exhausted_node_.get()) return false;
    byte = machine_->FindInterval(from->stacks, static_cast<uint8_t>(byte)).last + 1;
    if (is_last ? Represent(next, tier) != to
                : !LeadsOverUtf8(next, tier, to, row, column + 1, n_steps, cost)) {
      return false;
    }
  }
  return true;
}

}  // namespace ovq::constraint
