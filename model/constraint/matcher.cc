#include "model/constraint/matcher.h"

#include <algorithm>
#include <array>
#include <bit>

namespace ovq::constraint {
namespace {

// A level with fewer descendants is walked byte by byte, without a run.
constexpr int32_t kMinRun = 3;
// A run over at least this share of the vocabulary is worth knowing all nodes of its class.
constexpr int32_t kLargeRun = 16;
// Bounds the work of one mask, by the charges of all that it needs of places.
constexpr int64_t kMaxWalkCost = 1 << 18;
// Bounds the work of finding runs in one walk, besides. A walk finds no more runs then. They are
// only a shorter way to the same mask, so a mask does not fail because of them.
constexpr int64_t kMaxRunCost = kMaxWalkCost / 2;
constexpr int32_t kEndless = 1 << 30;  // characters of a run that leads back to its place

bool Has(const ByteSet& codes, uint8_t code) { return (codes[code / 64] >> code % 64 & 1) != 0; }

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

}  // namespace

Matcher::Matcher(std::shared_ptr<const Automaton> automaton,
                 std::shared_ptr<const Vocabulary> vocabulary, size_t cache_bytes)
    : vocabulary_(std::move(vocabulary)), cache_bytes_(cache_bytes), graph_(std::move(automaton)) {}

// A full cache is dropped as a whole.
void Matcher::MakeRoom() {
  exhausted_ = false;
  if (bytes() <= cache_bytes_) return;
  graph_.Clear();
  others_.clear();
  bytes_ = 0;
}

Place Matcher::Begin() {
  MakeRoom();
  return Place(graph_.Begin()->shared_from_this());
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
  PlaceNode* node = graph_.Own(place);
  for (const char c : text) {
    node = graph_.Next(node, static_cast<uint8_t>(c));
    exhausted_ = node == graph_.exhausted_node();
    if (node == nullptr || exhausted_) return std::nullopt;
  }
  return Place(node->shared_from_this());
}

std::shared_ptr<const TokenMask> Matcher::Mask(const Place& place) {
  MakeRoom();
  PlaceNode* const node =
      graph_.Represent(graph_.Own(place), PlaceGraph::FindTier(vocabulary_->max_depth()));
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
bool Matcher::Walk(PlaceNode* start, Ranges& allowed) {
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  ++walk_;
  walk_cost_ = run_cost_ = 0;
  bool met_exhaustion = false;
  levels_.clear();
  Enter(-1, start);
  for (int32_t i = 0; !levels_.empty();) {
    const Level& level = levels_.back();
    i = PassRun(level, i, allowed);
    if (i == level.end) {
      levels_.pop_back();
      continue;
    }
    const Vocabulary::Node& trie_node = nodes[i];
    PlaceNode* const from = FindParentPlace(level, i);
    // Where the run ends with the node before, another may go on from its place.
    if (level.run != nullptr && vocabulary_->chars()[i] - level.begun == level.n_chars + 1 &&
        trie_node.offset == 0 && i > 0 && trie_node.depth == nodes[i - 1].depth + 1) {
      Enter(i - 1, from);
      continue;
    }
    PlaceNode* to = nullptr;
    if (!Step(from, trie_node.byte, to)) return false;
    if (to == nullptr || to == graph_.exhausted_node()) {
      met_exhaustion |= to != nullptr;
      i = vocabulary_->behind()[i];
      continue;
    }
    Allow(vocabulary_->first_tokens()[i], vocabulary_->first_tokens()[i + 1], allowed);
    if (trie_node.reach > 0) {
      Enter(i, graph_.Represent(to, PlaceGraph::FindTier(trie_node.reach)));
    }
    ++i;
  }
  return !(met_exhaustion && allowed.empty() && !start->stacks.may_end);
}

bool Matcher::Pay(Charge& charge) {
  if (charge.last_walk == walk_) return true;
  charge.last_walk = walk_;
  walk_cost_ += charge.cost;
  return walk_cost_ <= kMaxWalkCost;
}

bool Matcher::Step(PlaceNode* from, uint8_t byte, PlaceNode*& to) {
  if (!Pay(from->charge)) return false;
  to = graph_.Next(from, byte);
  Charge* const heavy = from->FindHeavy(byte);
  return heavy == nullptr || Pay(*heavy);
}

// trie_node: with descendants, or -1 for the root.
void Matcher::Enter(int32_t trie_node, PlaceNode* place) {
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  const bool is_root = trie_node < 0;
  Level level{is_root ? static_cast<int32_t>(nodes.size()) : vocabulary_->behind()[trie_node],
              place};
  const int32_t reach = is_root ? vocabulary_->max_depth() : nodes[trie_node].reach;
  const bool is_utf8 = is_root || vocabulary_->codes()[trie_node] != Vocabulary::kNoUtf8;
  if (level.end - trie_node > kMinRun && is_utf8 && nodes[trie_node + 1].offset == 0) {
    level.tier = PlaceGraph::FindTier(reach);
    level.begun = is_root ? 0 : vocabulary_->chars()[trie_node];
    PlaceNode* at = place;
    // The run goes on as long as its places lead on over nearly the same class.
    while (level.n_chars < std::min<int32_t>(reach, Vocabulary::kMaxChars)) {
      if (run_cost_ > kMaxRunCost) {
        level.dead = {};  // The run ends at a place that has not been looked at.
        break;
      }
      PlaceRun& run = graph_.FindRun(at, level.tier);
      if (run.charge.last_walk != walk_) run_cost_ += run.charge.cost + at->charge.cost;
      run.charge.last_walk = walk_;
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
PlaceNode* Matcher::FindParentPlace(const Level& level, int32_t trie_node) {
  PlaceNode* place = level.place;
  if (level.run == nullptr) return place;
  const Vocabulary::Node& node = vocabulary_->nodes()[trie_node];
  for (int n = vocabulary_->chars()[trie_node] - level.begun - 1; n > 0; --n) {
    PlaceNode* const next = place->runs[place->RunIndex(level.tier)]->next;
    if (next == place) break;
    place = next;
  }
  if (node.offset == 0) return place;
  const std::string_view text =
      vocabulary_->Text(vocabulary_->order()[vocabulary_->first_tokens()[trie_node]]);
  for (const char c : text.substr(node.depth - 1 - node.offset, node.offset)) {
    place = graph_.Next(place, static_cast<uint8_t>(c));
  }
  return place;
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
