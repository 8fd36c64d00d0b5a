#include "model/constraint/matcher.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "absl/hash/hash.h"
#include "base/check.h"

namespace ovq::constraint {
namespace {

// A place with more edges has a table of all bytes.
constexpr size_t kMaxEdges = 8;
// A level with fewer descendants is walked byte by byte, without a run.
constexpr int32_t kMinRun = 3;
// A run over at least this share of the vocabulary is worth knowing all nodes of its class.
constexpr int32_t kLargeRun = 16;
// Bounds the work of one mask. A place costs kPlaceCost and its stacks, times an eighth of the
// ranges of bytes that lead on, a step within a run kPlaceCost and the stacks before it, and a step
// with more than kFreeWork items of work for each stack an eighth of the others on top.
constexpr int64_t kMaxWalkCost = 1 << 18, kPlaceCost = 3, kFreeWork = 16;
// Bounds the work of finding runs in one walk, besides. A walk finds no more runs then. They are
// only a shorter way to the same mask, so a mask does not fail because of them.
constexpr int64_t kMaxRunCost = kMaxWalkCost / 2;
constexpr int64_t kMaxRunSteps = 512;
constexpr int kMaxTier = 15;
constexpr int32_t kEndless = 1 << 30;  // characters of a run that leads back to its place

// The smallest tier whose texts are at least so long.
int FindTier(int32_t bytes) {
  return std::min<int>(std::bit_width(static_cast<uint32_t>(std::max(bytes, 1) - 1)), kMaxTier);
}

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

// Bytes, or codes.
bool Has(const ByteSet& set, uint8_t byte) { return (set[byte / 64] >> byte % 64 & 1) != 0; }
void Add(uint8_t byte, ByteSet& set) { set[byte / 64] |= uint64_t{1} << byte % 64; }

ByteSet Both(const ByteSet& a, const ByteSet& b) {
  return {a[0] & b[0], a[1] & b[1], a[2] & b[2], a[3] & b[3]};
}
int Count(const ByteSet& set) {
  int count = 0;
  for (const uint64_t word : set) count += std::popcount(word);
  return count;
}

// Adds tokens, in order(), to ranges that end before them or with them.
void Allow(int32_t begin, int32_t end, std::vector<std::pair<int32_t, int32_t>>& allowed) {
  if (!allowed.empty() && allowed.back().second == begin) {
    allowed.back().second = end;
  } else if (begin < end) {
    allowed.emplace_back(begin, end);
  }
}

uint64_t NewGeneration() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// A class of characters that lead from a place to one other, `next`, or back to it: from there the
// same texts of up to 2^tier bytes lead on.
struct Place::Run {
  ByteSet codes{};  // of Vocabulary::codes(): ASCII, and kPiece if every longer character is of it
  Node* next = nullptr;
  ByteSet dead{};                  // codes that lead nowhere from the place
  int64_t cost = 0;                // of finding it
  mutable uint64_t last_walk = 0;  // that paid for it
};

// Stacks, and what the cache of `generation` knows of them.
struct Place::Node : std::enable_shared_from_this<Place::Node> {
  struct Edge {
    uint8_t first, last;
    Node* to;
  };
  // Bytes whose step takes more work than the stacks let expect.
  struct HeavyEdge {
    uint8_t first, last;
    int64_t cost;
  };
  // The cost of a step that Next has done, at whatever time, on top of the place's.
  int64_t WorkCost(uint8_t byte) const {
    int64_t cost = 0;
    for (const HeavyEdge& edge : heavy_edges) {
      if (edge.first <= byte && byte <= edge.last) cost += edge.cost;
    }
    return cost;
  }
  // Where the run of a tier lies in `runs`. Places without a count have one for all tiers.
  size_t RunIndex(int tier) const { return counts ? tier : 0; }
  Stacks stacks;
  uint64_t generation = 0;
  std::vector<Edge> edges;
  std::vector<HeavyEdge> heavy_edges;
  std::unique_ptr<std::array<Node*, 256>> table;
  bool counts = false;                     // some place may represent it
  std::vector<Node*> representatives;      // [tier], null until asked for
  std::vector<std::unique_ptr<Run>> runs;  // [tier], likewise
  std::shared_ptr<const TokenMask> mask;
  bool mask_exhausted = false;
  int64_t cost = 0;
  uint64_t last_walk = 0;  // that paid the cost
};

bool Place::may_end() const { return node_->stacks.may_end; }
bool Place::may_go_on() const { return !node_->stacks.heads.empty(); }

size_t Matcher::Hash::operator()(const std::shared_ptr<Place::Node>& node) const {
  return operator()(node->stacks);
}
size_t Matcher::Hash::operator()(const Stacks& stacks) const {
  size_t hash = stacks.may_end ? 1 : 0;
  for (const Head& head : stacks.heads) {
    hash = absl::HashOf(hash, head.state, head.rest.get());
  }
  return hash;
}
bool Matcher::Equal::operator()(const std::shared_ptr<Place::Node>& a,
                                const std::shared_ptr<Place::Node>& b) const {
  return a->stacks == b->stacks;
}
bool Matcher::Equal::operator()(const std::shared_ptr<Place::Node>& a, const Stacks& b) const {
  return a->stacks == b;
}

Matcher::Matcher(std::shared_ptr<const Automaton> automaton,
                 std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      cache_bytes_(cache_bytes),
      generation_(NewGeneration()),
      unknown_node_(std::make_shared<Place::Node>()),
      exhausted_node_(std::make_shared<Place::Node>()) {
  machine_.emplace(automaton_);
}

Matcher::~Matcher() = default;

size_t Matcher::bytes() const { return bytes_ + machine_->bytes(); }

// A full cache is dropped as a whole. Places that are held keep their stacks and nothing else.
void Matcher::MakeRoom() {
  exhausted_ = false;
  if (bytes() <= cache_bytes_) return;
  for (const std::shared_ptr<Place::Node>& node : nodes_) {
    node->edges = {};
    node->heavy_edges = {};
    node->table = nullptr;
    node->representatives = {};
    node->runs.clear();
    node->mask = nullptr;
  }
  nodes_.clear();
  others_.clear();
  machine_.emplace(automaton_);
  generation_ = NewGeneration();
  bytes_ = 0;
}

Place Matcher::Begin() {
  MakeRoom();
  Stacks stacks;
  Check(machine_->Begin(stacks), "CompileGrammar checks the first place");
  return Place(Intern(std::move(stacks))->shared_from_this());
}

Place::Node* Matcher::Own(const Place& place) {
  Place::Node* const node = place.node_.get();
  return node->generation == generation_ ? node : Intern(machine_->Adopt(node->stacks));
}

Place::Node* Matcher::Intern(Stacks stacks) {
  const auto found = nodes_.find(stacks);
  if (found != nodes_.end()) return found->get();
  auto node = std::make_shared<Place::Node>();
  node->stacks = std::move(stacks);
  node->stacks.heads.shrink_to_fit();
  node->generation = generation_;
  node->counts = std::any_of(node->stacks.heads.begin(), node->stacks.heads.end(),
                             [](const Head& head) { return head.rest && head.rest->counts; });
  int64_t n_ranges = 8;
  for (const Head& head : node->stacks.heads) {
    n_ranges += static_cast<int64_t>(automaton_->ranges(head.state).size());
  }
  node->cost = (kPlaceCost + static_cast<int64_t>(node->stacks.heads.size())) *
               std::min<int64_t>(n_ranges, 256) / 8;
  bytes_ += sizeof(Place::Node) + 64 + node->stacks.heads.size() * sizeof(Head);
  return nodes_.insert(std::move(node)).first->get();
}

Place::Node* Matcher::Next(Place::Node* from, uint8_t byte) {
  ++n_steps_;
  if (from->table) {
    Place::Node* const to = (*from->table)[byte];
    return to != unknown_node_.get() ? to : Expand(from, byte);
  }
  for (const Place::Node::Edge& edge : from->edges) {
    if (edge.first <= byte && byte <= edge.last) return edge.to;
  }
  return Expand(from, byte);
}

Place::Node* Matcher::Expand(Place::Node* from, uint8_t byte) {
  const StackMachine::Interval interval = machine_->FindInterval(from->stacks, byte);
  Place::Node* to = nullptr;
  if (!interval.empty) {
    Stacks stacks;
    if (!machine_->Step(from->stacks, byte, stacks)) {
      to = exhausted_node_.get();
    } else if (stacks.may_end || !stacks.heads.empty()) {
      to = Intern(std::move(stacks));
    }
    // That of stacks which remain is paid with their places.
    const size_t n_stacks =
        from->stacks.heads.size() + (to == nullptr ? 0 : to->stacks.heads.size());
    const int64_t work = machine_->work() - kFreeWork * static_cast<int64_t>(n_stacks);
    if (work > 0) {
      from->heavy_edges.push_back({interval.first, interval.last, 1 + work / 8});
      bytes_ += sizeof(Place::Node::HeavyEdge);
    }
  }
  const auto fill = [from](uint8_t first, uint8_t last, Place::Node* node) {
    std::fill(from->table->begin() + first, from->table->begin() + last + 1, node);
  };
  if (from->table) {
    fill(interval.first, interval.last, to);
    return to;
  }
  from->edges.push_back({interval.first, interval.last, to});
  bytes_ += sizeof(Place::Node::Edge);
  if (from->edges.size() <= kMaxEdges) return to;
  from->table = std::make_unique<std::array<Place::Node*, 256>>();
  from->table->fill(unknown_node_.get());
  bytes_ += sizeof(*from->table);
  for (const Place::Node::Edge& edge : from->edges) fill(edge.first, edge.last, edge.to);
  bytes_ -= from->edges.size() * sizeof(Place::Node::Edge);
  from->edges = {};
  return to;
}

Place::Node* Matcher::Represent(Place::Node* node, int tier) {
  if (!node->counts || tier == kMaxTier) return node;
  if (node->representatives.empty()) {
    node->representatives.resize(kMaxTier);
    bytes_ += kMaxTier * sizeof(Place::Node*);
  }
  Place::Node*& representative = node->representatives[tier];
  if (representative == nullptr) {
    representative = Intern(machine_->Represent(node->stacks, int64_t{1} << tier));
  }
  return representative;
}

std::optional<Place> Matcher::Advance(const Place& place, int32_t token) {
  if (token < 0 || token >= vocabulary_->size() || vocabulary_->Text(token).empty()) {
    exhausted_ = false;
    return std::nullopt;
  }
  return Advance(place, vocabulary_->Text(token));
}

std::optional<Place> Matcher::Advance(const Place& place, std::string_view text) {
  MakeRoom();
  Place::Node* node = Own(place);
  for (const char c : text) {
    node = Next(node, static_cast<uint8_t>(c));
    exhausted_ = node == exhausted_node_.get();
    if (node == nullptr || exhausted_) return std::nullopt;
  }
  return Place(node->shared_from_this());
}

std::shared_ptr<const TokenMask> Matcher::Mask(const Place& place) {
  MakeRoom();
  Place::Node* const node = Represent(Own(place), FindTier(vocabulary_->max_depth()));
  if (!node->mask) {
    Ranges allowed;
    const bool complete = Walk(node, allowed);
    if (!complete) allowed.clear();
    node->mask = MakeMask(allowed, node->stacks.may_end && complete);
    node->mask_exhausted = !complete;
    bytes_ += sizeof(TokenMask) + node->mask->bits.size() * sizeof(uint32_t);
    ++n_masks_computed_;
  }
  exhausted_ = node->mask_exhausted;
  return node->mask;
}

// Walks the trie with a representative of the place of each node on the path. Nodes of a run are
// passed without a look at their places, which takes most of them in the body of a text. Returns
// false where that is too much work, or where nothing is left because places need too many stacks.
// Its cost is counted without regard to what is cached, so the result does not depend on that.
bool Matcher::Walk(Place::Node* start, Ranges& allowed) {
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  ++walk_;
  walk_cost_ = run_cost_ = 0;
  bool met_exhaustion = false;
  levels_.clear();
  if (!Pay(start)) return false;
  Enter(-1, start);
  for (int32_t i = 0; !levels_.empty();) {
    const Level& level = levels_.back();
    i = PassRun(level, i, allowed);
    if (i == level.end) {
      levels_.pop_back();
      continue;
    }
    const Vocabulary::Node& trie_node = nodes[i];
    Place::Node* const from = FindParentPlace(level, i);
    // Where the run ends with the node before, another may go on from its place.
    if (level.run != nullptr && vocabulary_->chars()[i] - level.begun == level.n_chars + 1 &&
        trie_node.offset == 0 && i > 0 && trie_node.depth == nodes[i - 1].depth + 1) {
      if (!Pay(from)) return false;
      Enter(i - 1, from);
      continue;
    }
    Place::Node* to = Next(from, trie_node.byte);
    if (to == nullptr || to == exhausted_node_.get()) {
      met_exhaustion |= to != nullptr;
      i = vocabulary_->behind()[i];
      continue;
    }
    if (trie_node.reach > 0) to = Represent(to, FindTier(trie_node.reach));
    if (!Pay(to)) return false;
    Allow(vocabulary_->first_tokens()[i], vocabulary_->first_tokens()[i + 1], allowed);
    if (trie_node.reach > 0) Enter(i, to);
    ++i;
  }
  return !(met_exhaustion && allowed.empty() && !start->stacks.may_end);
}

bool Matcher::Pay(Place::Node* place) {
  if (place->last_walk == walk_) return true;
  place->last_walk = walk_;
  walk_cost_ += place->cost;
  return walk_cost_ <= kMaxWalkCost;
}

// trie_node: with descendants, or -1 for the root.
void Matcher::Enter(int32_t trie_node, Place::Node* place) {
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  const bool is_root = trie_node < 0;
  Level level{is_root ? static_cast<int32_t>(nodes.size()) : vocabulary_->behind()[trie_node],
              place};
  const int32_t reach = is_root ? vocabulary_->max_depth() : nodes[trie_node].reach;
  const bool is_utf8 = is_root || vocabulary_->codes()[trie_node] != Vocabulary::kNoUtf8;
  if (level.end - trie_node > kMinRun && is_utf8 && nodes[trie_node + 1].offset == 0) {
    level.tier = FindTier(reach);
    level.begun = is_root ? 0 : vocabulary_->chars()[trie_node];
    Place::Node* at = place;
    // The run goes on as long as its places lead on over nearly the same class.
    while (level.n_chars < std::min<int32_t>(reach, Vocabulary::kMaxChars)) {
      if (run_cost_ > kMaxRunCost) {
        level.dead = {};  // The run ends at a place that has not been looked at.
        break;
      }
      const Place::Run& run = FindRun(at, level.tier);
      if (run.last_walk != walk_) run_cost_ += run.cost + at->cost;
      run.last_walk = walk_;
      if (level.run == nullptr) {
        level.run = &run;
        level.codes = run.codes;
        level.dead = run.dead;
      }
      level.dead = Both(level.dead, run.dead);
      const ByteSet codes = Both(level.codes, run.codes);
      const int most = std::max(Count(level.run->codes), Count(run.codes));
      if (run.next == nullptr || 8 * Count(codes) < 7 * most) break;
      level.codes = codes;
      level.n_chars = run.next == at ? kEndless : level.n_chars + 1;
      at = run.next;
    }
    level.ends_text = at->stacks.heads.empty();
    if (level.n_chars == 0) level.run = nullptr;
    if (level.run != nullptr) level.others = FindOthers(trie_node, level);
  }
  levels_.push_back(level);
}

const uint64_t* Matcher::FindOthers(int32_t trie_node, const Level& level) {
  const auto known = others_.find(level.codes);
  if (known != others_.end()) return known->second.data();
  const std::span<const uint8_t> codes = vocabulary_->codes();
  const std::span<const int32_t> behind = vocabulary_->behind();
  const auto least = static_cast<int32_t>(codes.size()) / kLargeRun;
  if (level.end - trie_node <= least) return nullptr;
  int32_t n_passed = 0;  // at most
  for (int32_t child = trie_node + 1; child < level.end; child = behind[child]) {
    if (Has(level.codes, codes[child])) n_passed += behind[child] - child;
  }
  if (n_passed <= least) return nullptr;
  std::array<uint8_t, 256> is_other;
  for (size_t code = 0; code < is_other.size(); ++code) {
    is_other[code] = Has(level.codes, static_cast<uint8_t>(code)) ? 0 : 1;
  }
  std::vector<uint64_t> others((codes.size() + 63) / 64);
  size_t i = 0;
  for (; i + 64 <= codes.size(); i += 64) {
    uint64_t bits = 0;
    for (size_t k = 0; k < 64; ++k) bits |= uint64_t{is_other[codes[i + k]]} << k;
    others[i / 64] = bits;
  }
  for (; i < codes.size(); ++i) others[i / 64] |= uint64_t{is_other[codes[i]]} << (i % 64);
  bytes_ += others.size() * sizeof(uint64_t) + sizeof(ByteSet);
  return others_.emplace(level.codes, std::move(others)).first->second.data();
}

// Passes the nodes that the level's run allows, and those that lead nowhere from it. Returns the
// first other one, or the level's end.
int32_t Matcher::PassRun(const Level& level, int32_t trie_node, Ranges& allowed) const {
  if (level.run == nullptr) return trie_node;
  const int32_t* const first_tokens = vocabulary_->first_tokens().data();
  const int32_t* const behind = vocabulary_->behind().data();
  const uint8_t* const codes = vocabulary_->codes().data();
  for (int32_t i = trie_node; i < level.end;) {
    const int32_t other = FindOther(level, i);
    Allow(first_tokens[i], first_tokens[other], allowed);
    if (other == level.end) return other;
    const bool is_behind = vocabulary_->chars()[other] > level.begun + level.n_chars;
    if (!Has(level.dead, codes[other]) && !(is_behind && level.ends_text)) return other;
    i = behind[other];
  }
  return level.end;
}

// The first node from `trie_node` on that is not allowed by the run, or the level's end.
int32_t Matcher::FindOther(const Level& level, int32_t trie_node) const {
  const uint8_t* const codes = vocabulary_->codes().data();
  const uint8_t* const chars = vocabulary_->chars().data();
  const int32_t most = level.begun + level.n_chars;  // chars
  int32_t i = trie_node;
  if (level.others == nullptr) {
    while (i < level.end && Has(level.codes, codes[i]) && chars[i] <= most) ++i;
    return i;
  }
  while (i < level.end) {
    // From i to the word's end, as far as they are below the level.
    const int32_t end = std::min((i | 63) + 1, level.end);
    const uint64_t others = level.others[i / 64] >> (i % 64);
    const int32_t first_other = others == 0 ? end : std::min(end, i + std::countr_zero(others));
    if (vocabulary_->most_chars()[i / 64] > most) {
      while (i < first_other && chars[i] <= most) ++i;
    } else {
      i = first_other;
    }
    if (i < end) return i;
  }
  return i;
}

// The place behind the node's parent, which is the level's node or was passed by its run.
Place::Node* Matcher::FindParentPlace(const Level& level, int32_t trie_node) {
  Place::Node* place = level.place;
  if (level.run == nullptr) return place;
  const Vocabulary::Node& node = vocabulary_->nodes()[trie_node];
  for (int n = vocabulary_->chars()[trie_node] - level.begun - 1; n > 0; --n) {
    Place::Node* const next = place->runs[place->RunIndex(level.tier)]->next;
    if (next == place) break;
    place = next;
  }
  if (node.offset == 0) return place;
  const std::string_view text =
      vocabulary_->Text(vocabulary_->order()[vocabulary_->first_tokens()[trie_node]]);
  for (const char c : text.substr(node.depth - 1 - node.offset, node.offset)) {
    place = Next(place, static_cast<uint8_t>(c));
  }
  return place;
}

const Place::Run& Matcher::FindRun(Place::Node* node, int tier) {
  const size_t index = node->RunIndex(tier);
  if (index < node->runs.size() && node->runs[index]) return *node->runs[index];
  auto run = std::make_unique<Place::Run>();
  const auto ascii = FindAsciiClass(node);
  const auto n_heads = static_cast<int64_t>(node->stacks.heads.size());
  run->cost = (n_heads + kPlaceCost) / 8;
  int64_t n_steps = 0;
  const int first = ascii[0] != 0 ? std::countr_zero(ascii[0]) : 64 + std::countr_zero(ascii[1]);
  Place::Node* next = first < 128 ? Next(node, static_cast<uint8_t>(first)) : nullptr;
  if (n_heads > static_cast<int64_t>(StackMachine::kMaxClassHeads)) {
    for (const Place::Node::HeavyEdge& edge : node->heavy_edges) {
      if (edge.first < 128)
        run->cost += edge.cost;  // FindAsciiClass has stepped over all of ASCII.
    }
  } else if (first < 128) {
    run->cost += node->WorkCost(static_cast<uint8_t>(first));
  }
  // A place without a count does not know the tier, which one with a count depends on.
  const bool leads_on = next != nullptr && next != exhausted_node_.get();
  if (leads_on && (node->counts || !next->counts)) {
    run->next = next = Represent(next, tier);
    run->codes = {ascii[0], ascii[1], 0, 0};
    bool over_utf8 = true;
    for (int row = 0; row < static_cast<int>(kUtf8Rows.size()) && over_utf8; ++row) {
      over_utf8 = LeadsOverUtf8(node, tier, next, row, 0, n_steps, run->cost);
    }
    if (over_utf8) Add(Vocabulary::kPiece, run->codes);
  }
  const ByteSet bytes = machine_->FindBytes(node->stacks);
  run->dead = {~bytes[0], ~bytes[1], 0, 0};
  if ((bytes[2] | bytes[3]) == 0) Add(Vocabulary::kPiece, run->dead);
  bytes_ += sizeof(Place::Run);
  if (index >= node->runs.size()) {
    bytes_ += (index + 1 - node->runs.size()) * sizeof(node->runs[0]);
    node->runs.resize(index + 1);
  }
  return *(node->runs[index] = std::move(run));
}

// A large set of ASCII bytes that lead from the place to one other, as bits; empty if none leads
// on.
std::array<uint64_t, 2> Matcher::FindAsciiClass(Place::Node* node) {
  if (node->stacks.heads.size() <= StackMachine::kMaxClassHeads) {
    return machine_->FindAsciiClass(node->stacks);
  }
  std::array<Place::Node*, 128> to;
  for (int byte = 0; byte < 128;) {
    const auto interval = machine_->FindInterval(node->stacks, static_cast<uint8_t>(byte));
    const int end = std::min<int>(interval.last + 1, 128);
    std::fill(to.begin() + byte, to.begin() + end, Next(node, static_cast<uint8_t>(byte)));
    byte = end;
  }
  int most = 0;
  const Place::Node* largest = nullptr;
  for (const Place::Node* const one : to) {
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
bool Matcher::LeadsOverUtf8(Place::Node* from, int tier, const Place::Node* to, int row, int column,
                            int64_t& n_steps, int64_t& cost) {
  const auto [first, last] = kUtf8Rows[row].bytes[column];
  const bool is_last = column + 1 == kUtf8Rows[row].length;
  for (int byte = first; byte <= last;) {
    if (++n_steps > kMaxRunSteps) return false;
    Place::Node* const next = Next(from, static_cast<uint8_t>(byte));
    cost += kPlaceCost + static_cast<int64_t>(from->stacks.heads.size());
    cost += from->WorkCost(static_cast<uint8_t>(byte));
    if (next == nullptr || next == exhausted_node_.get()) return false;
    byte = machine_->FindInterval(from->stacks, static_cast<uint8_t>(byte)).last + 1;
    if (is_last ? Represent(next, tier) != to
                : !LeadsOverUtf8(next, tier, to, row, column + 1, n_steps, cost)) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<const TokenMask> Matcher::MakeMask(const Ranges& allowed, bool may_end) const {
  const std::span<const int32_t> order = vocabulary_->order();
  auto mask = std::make_shared<TokenMask>();
  mask->bits.resize((vocabulary_->size() + 31) / 32);
  const auto flip = [&](int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; ++i) mask->bits[order[i] / 32] ^= 1U << order[i] % 32;
  };
  const auto set = [&](int32_t id) { mask->bits[id / 32] |= 1U << id % 32; };
  for (const auto& [begin, end] : allowed) mask->n_allowed += end - begin;
  if (2 * mask->n_allowed <= static_cast<int64_t>(order.size())) {
    for (const auto& [begin, end] : allowed) flip(begin, end);
  } else {  // fewer bits are to be cleared in the mask of all tokens with a text
    std::fill(mask->bits.begin(), mask->bits.end(), ~0U);
    for (const int32_t id : vocabulary_->without_text()) mask->bits[id / 32] ^= 1U << id % 32;
    if (vocabulary_->size() % 32 != 0) mask->bits.back() &= (1U << vocabulary_->size() % 32) - 1;
    int32_t refused = 0;
    for (const auto& [begin, end] : allowed) {
      flip(refused, begin);
      refused = end;
    }
    flip(refused, static_cast<int32_t>(order.size()));
  }
  if (may_end) {
    for (const int32_t id : vocabulary_->ends()) set(id);
    mask->n_allowed += static_cast<int64_t>(vocabulary_->ends().size());
  }
  if (mask->n_allowed == 1) {
    for (size_t word = 0; word < mask->bits.size(); ++word) {
      if (mask->bits[word] == 0) continue;
      mask->only = static_cast<int32_t>(32 * word) + std::countr_zero(mask->bits[word]);
    }
  }
  return mask;
}

}  // namespace ovq::constraint
