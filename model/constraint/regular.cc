#include "model/constraint/regular.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace ovq::constraint {
namespace {

constexpr int64_t kMostTableEntries = int64_t{1} << 22;  // 16 MB

absl::Status CheckTable(int64_t n_states, int64_t n_classes, Budget& budget) {
  if (n_states * n_classes > kMostTableEntries) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "needs an automaton with ", n_states, " states of ", n_classes, " kinds of characters"));
  }
  return budget.CheckStates(n_states);
}

}  // namespace

bool DecodeUtf8(std::string_view text, std::u32string& out) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = text[i];
    const int n = lead < 0x80   ? 1
                  : lead < 0xc2 ? 0
                  : lead < 0xe0 ? 2
                  : lead < 0xf0 ? 3
                  : lead < 0xf5 ? 4
                                : 0;
    if (n == 0 || i + n > text.size()) return false;
    uint32_t code = n == 1 ? lead : lead & (0xff >> (n + 1));
    for (int k = 1; k < n; ++k) {
      if ((uint8_t(text[i + k]) & 0xc0) != 0x80) return false;
      code = code << 6 | (uint8_t(text[i + k]) & 0x3f);
    }
    const bool is_overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
    if (is_overlong || code > kLastCodePoint || (code >= 0xd800 && code < 0xe000)) {
      return false;
    }
    out.push_back(code);
    i += n;
  }
  return true;
}

absl::Status Budget::Spend(int64_t steps) {
  steps_ -= steps;
  if (steps_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError("takes too long to compile");
}

absl::Status Budget::CheckStates(int64_t n_states) {
  if (n_states > states_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs an automaton of more than ", states_, " states"));
  }
  return absl::OkStatus();
}

Alphabet::Alphabet(const std::vector<CodeSet>& sets, std::vector<std::vector<int32_t>>& members) {
  std::map<uint32_t, std::vector<int32_t>> changes;  // sets that begin or end at a code point
  changes[0];
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const CodePointRange& range : sets[i]) {
      changes[range.first].push_back(static_cast<int32_t>(i));
      changes[range.last + 1].push_back(static_cast<int32_t>(i));
    }
  }
  std::map<std::set<int32_t>, int32_t> classes;  // {sets that a class is in: class}
  std::set<int32_t> in;
  members.assign(sets.size(), {});
  for (const auto& [first, changed] : changes) {
    for (const int32_t set : changed) {
      if (!in.erase(set)) in.insert(set);
    }
    int32_t code_class = -1;
    if (!in.empty()) {
      const auto [found, is_new] = classes.try_emplace(in, n_classes_);
      code_class = found->second;
      if (is_new) {
        for (const int32_t set : in) members[set].push_back(n_classes_);
        ++n_classes_;
      }
    }
    Append(first, code_class);
  }
}

Alphabet::Alphabet(const Alphabet& a, const Alphabet& b,
                   std::vector<std::pair<int32_t, int32_t>>& pairs) {
  std::map<std::pair<int32_t, int32_t>, int32_t> classes;
  size_t i = 0;
  size_t k = 0;
  for (uint32_t first = 0;;) {
    const std::pair<int32_t, int32_t> pair{a.segments_[i].code_class, b.segments_[k].code_class};
    int32_t code_class = -1;
    if (pair.first >= 0 || pair.second >= 0) {
      const auto [found, is_new] = classes.try_emplace(pair, n_classes_);
      code_class = found->second;
      if (is_new) {
        pairs.push_back(pair);
        ++n_classes_;
      }
    }
    Append(first, code_class);
    const uint32_t next_a = i + 1 < a.segments_.size() ? a.segments_[i + 1].first : UINT32_MAX;
    const uint32_t next_b = k + 1 < b.segments_.size() ? b.segments_[k + 1].first : UINT32_MAX;
    first = std::min(next_a, next_b);
    if (first == UINT32_MAX) return;
    if (next_a == first) ++i;
    if (next_b == first) ++k;
  }
}

Alphabet::Alphabet(const Alphabet& other, const std::vector<int32_t>& names) {
  for (const int32_t name : names) n_classes_ = std::max(n_classes_, name + 1);
  for (const Segment& segment : other.segments_) {
    Append(segment.first, segment.code_class < 0 ? -1 : names[segment.code_class]);
  }
}

void Alphabet::Append(uint32_t first, int32_t code_class) {
  if (!segments_.empty() && segments_.back().code_class == code_class) return;
  segments_.push_back({first, code_class});
}

int32_t Alphabet::Class(uint32_t code) const {
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), code,
                                      [](uint32_t c, const Segment& s) { return c < s.first; });
  return after == segments_.begin() ? -1 : std::prev(after)->code_class;
}

Language::Language(Alphabet alphabet, std::vector<int32_t> next, std::vector<bool> accepts)
    : alphabet_(std::move(alphabet)), next_(std::move(next)), accepts_(std::move(accepts)) {
  Check(!accepts_.empty() && next_.size() == accepts_.size() * alphabet_.n_classes(),
        "a table has a row for each state");
}

bool Language::Matches(std::u32string_view text) const {
  int32_t state = 0;
  for (const char32_t code : text) {
    const int32_t code_class = alphabet_.Class(code);
    state = code_class < 0 ? -1 : Next(state, code_class);
    if (state < 0) return false;
  }
  return accepts_[state];
}

bool Language::MatchesUtf8(std::string_view text) const {
  std::u32string codes;
  return DecodeUtf8(text, codes) && Matches(codes);
}

bool Language::IsEmpty() const {
  return std::find(accepts_.begin(), accepts_.end(), true) == accepts_.end();
}

int32_t Nfa::AddState() {
  edges_.emplace_back();
  return static_cast<int32_t>(edges_.size()) - 1;
}

void Nfa::AddEdge(int32_t from, int32_t to, const CodeSet& set) {
  // Neighbours in an expression often have equal sets; others are made equal by their classes.
  if (sets_.empty() || sets_.back() != set) sets_.push_back(set);
  edges_[from].push_back({Kind::kCodes, static_cast<int32_t>(sets_.size()) - 1, to});
}

void Nfa::AddEdge(int32_t from, int32_t to, Kind kind) { edges_[from].push_back({kind, -1, to}); }

namespace {

// The subset construction.
class Subsets {
 public:
  Subsets(const Nfa& nfa, int32_t accept, Budget& budget)
      : nfa_(nfa), accept_(accept), budget_(budget), seen_(nfa.edges().size(), 0) {}

  absl::StatusOr<Language> Run(int32_t start) {
    std::vector<int32_t> set_ids;
    const std::vector<CodeSet> sets = DistinctSets(set_ids);
    std::vector<std::vector<int32_t>> members;
    const Alphabet alphabet(sets, members);
    RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(alphabet.segments().size()) * 8));
    const int32_t n_classes = alphabet.n_classes();

    Add(Close({start}, /*at_begin=*/true, /*at_end=*/false), /*is_start=*/true);
    std::vector<int32_t> next;
    std::vector<std::vector<int32_t>> targets(n_classes);
    for (size_t state = 0; state < subsets_.size(); ++state) {
      RETURN_IF_ERROR(CheckTable(static_cast<int64_t>(subsets_.size()), n_classes, budget_));
      for (auto& target : targets) target.clear();
      int64_t steps = n_classes;
      for (const int32_t from : *subsets_[state]) {
        for (const Nfa::Edge& edge : nfa_.edges()[from]) {
          if (edge.kind != Nfa::Kind::kCodes) continue;
          for (const int32_t c : members[set_ids[edge.set]]) targets[c].push_back(edge.to);
          steps += static_cast<int64_t>(members[set_ids[edge.set]].size());
        }
      }
      for (int32_t c = 0; c < n_classes; ++c) {
        if (targets[c].empty()) {
          next.push_back(-1);
          continue;
        }
        next.push_back(Add(Close(targets[c], false, false), /*is_start=*/false));
      }
      RETURN_IF_ERROR(budget_.Spend(steps + closed_));
      closed_ = 0;
    }
    return Language(alphabet, std::move(next), std::move(accepts_));
  }

 private:
  std::vector<CodeSet> DistinctSets(std::vector<int32_t>& ids) const {
    std::map<CodeSet, int32_t> known;
    std::vector<CodeSet> sets;
    for (const CodeSet& set : nfa_.sets()) {
      const auto [found, is_new] = known.try_emplace(set, static_cast<int32_t>(sets.size()));
      if (is_new) sets.push_back(set);
      ids.push_back(found->second);
    }
    return sets;
  }

  // The states that can be reached without a code point, ascending.
  std::vector<int32_t> Close(std::vector<int32_t> states, bool at_begin, bool at_end) {
    ++mark_;
    std::vector<int32_t> closed;
    const auto visit = [&](int32_t state) {
      if (seen_[state] == mark_) return;
      seen_[state] = mark_;
      closed.push_back(state);
    };
    for (const int32_t state : states) visit(state);
    for (size_t i = 0; i < closed.size(); ++i) {
      for (const Nfa::Edge& edge : nfa_.edges()[closed[i]]) {
        const bool passes = edge.kind == Nfa::Kind::kEmpty ||
                            (edge.kind == Nfa::Kind::kBegin && at_begin) ||
                            (edge.kind == Nfa::Kind::kEnd && at_end);
        if (passes) visit(edge.to);
      }
    }
    closed_ += static_cast<int64_t>(closed.size());
    std::sort(closed.begin(), closed.end());
    return closed;
  }

  // The start is a state of its own: only there begin edges may be passed.
  int32_t Add(std::vector<int32_t> subset, bool is_start) {
    const int32_t state = static_cast<int32_t>(subsets_.size());
    const auto [found, is_new] = ids_.try_emplace({is_start, std::move(subset)}, state);
    if (!is_new) return found->second;
    subsets_.push_back(&found->first.second);
    const std::vector<int32_t> ended = Close(found->first.second, is_start, true);
    accepts_.push_back(std::binary_search(ended.begin(), ended.end(), accept_));
    return state;
  }

  const Nfa& nfa_;
  const int32_t accept_;
  Budget& budget_;
  std::vector<int32_t> seen_;
  int32_t mark_ = 0;
  int64_t closed_ = 0;
  std::map<std::pair<bool, std::vector<int32_t>>, int32_t> ids_;
  std::vector<const std::vector<int32_t>*> subsets_;
  std::vector<bool> accepts_;
};

// Hopcroft's algorithm, on the table with one more state, which stands for "nothing".
class Partition {
 public:
  explicit Partition(const Language& language)
      : language_(language),
        n_(language.n_states() + 1),
        n_classes_(language.alphabet().n_classes()),
        place_(n_),
        block_(n_),
        order_(n_) {
    std::vector<int32_t> accepting;
    std::vector<int32_t> others;
    for (int32_t s = 0; s < n_; ++s) (IsAccepting(s) ? accepting : others).push_back(s);
    for (const auto* part : {&accepting, &others}) {
      if (part->empty()) continue;
      const int32_t first = blocks_.empty() ? 0 : blocks_.back().end;
      blocks_.push_back({first, first + static_cast<int32_t>(part->size()), 0});
      for (size_t i = 0; i < part->size(); ++i) {
        Put((*part)[i], first + static_cast<int32_t>(i));
        block_[(*part)[i]] = static_cast<int32_t>(blocks_.size()) - 1;
      }
    }
    MakeInverse();
  }

  void Refine() {
    std::vector<int32_t> pending;
    for (size_t b = 0; b < blocks_.size(); ++b) pending.push_back(static_cast<int32_t>(b));
    while (!pending.empty()) {
      const Block block = blocks_[pending.back()];
      pending.pop_back();
      const std::vector<int32_t> splitter(order_.begin() + block.first, order_.begin() + block.end);
      for (int32_t c = 0; c < n_classes_; ++c) Split(splitter, c, pending);
    }
  }

  Language Result() const {
    const int32_t nothing = block_[n_ - 1];
    // Blocks are numbered as they are met from the start.
    std::vector<int32_t> number(blocks_.size(), -1);
    std::vector<int32_t> met = {block_[0]};
    number[met[0]] = 0;
    std::vector<int32_t> next;
    std::vector<bool> accepts;
    for (size_t i = 0; i < met.size(); ++i) {
      const int32_t state = order_[blocks_[met[i]].first];
      accepts.push_back(IsAccepting(state));
      for (int32_t c = 0; c < n_classes_; ++c) {
        const int32_t to = block_[Next(state, c)];
        if (to != nothing && number[to] < 0) {
          number[to] = static_cast<int32_t>(met.size());
          met.push_back(to);
        }
        next.push_back(to == nothing ? -1 : number[to]);
      }
    }
    return MergeClasses(next, std::move(accepts));
  }

 private:
  struct Block {
    int32_t first, end;  // of order_
    int32_t n_marked;    // at its front, while it is split
  };

  // Classes that no state tells apart become one, and those that lead nowhere none.
  Language MergeClasses(const std::vector<int32_t>& next, std::vector<bool> accepts) const {
    const size_t n_states = accepts.size();
    const std::vector<int32_t> nowhere(n_states, -1);
    std::map<std::vector<int32_t>, int32_t> columns;
    std::vector<int32_t> names(n_classes_, -1);
    for (int32_t c = 0; c < n_classes_; ++c) {
      std::vector<int32_t> column(n_states);
      for (size_t s = 0; s < n_states; ++s) column[s] = next[s * n_classes_ + c];
      if (column == nowhere) continue;
      names[c] = columns.try_emplace(std::move(column), columns.size()).first->second;
    }
    std::vector<int32_t> table(n_states * columns.size());
    for (const auto& [column, name] : columns) {
      for (size_t s = 0; s < n_states; ++s) table[s * columns.size() + name] = column[s];
    }
    return Language(Alphabet(language_.alphabet(), names), std::move(table), std::move(accepts));
  }

  bool IsAccepting(int32_t state) const { return state + 1 < n_ && language_.accepts(state); }
  int32_t Next(int32_t state, int32_t c) const {
    const int32_t to = state + 1 < n_ ? language_.Next(state, c) : -1;
    return to < 0 ? n_ - 1 : to;
  }
  void Put(int32_t state, int32_t place) {
    order_[place] = state;
    place_[state] = place;
  }

  // sources_ from begins_[c * (n + 1) + state] on: the states that `state` follows under class c.
  void MakeInverse() {
    const size_t stride = n_ + 1;
    begins_.assign(stride * n_classes_, 0);
    sources_.resize(size_t(n_) * n_classes_);
    for (int32_t c = 0; c < n_classes_; ++c) {
      int32_t* begins = begins_.data() + stride * c;
      for (int32_t s = 0; s < n_; ++s) ++begins[Next(s, c) + 1];
      for (int32_t s = 0; s < n_; ++s) begins[s + 1] += begins[s];
      std::vector<int32_t> at(begins, begins + n_);
      for (int32_t s = 0; s < n_; ++s) sources_[size_t(n_) * c + at[Next(s, c)]++] = s;
    }
  }

  void Split(const std::vector<int32_t>& splitter, int32_t c, std::vector<int32_t>& pending) {
    std::vector<int32_t> touched;
    const int32_t* begins = begins_.data() + size_t(n_ + 1) * c;
    for (const int32_t to : splitter) {
      for (int32_t i = begins[to]; i < begins[to + 1]; ++i) {
        const int32_t state = sources_[size_t(n_) * c + i];
        Block& block = blocks_[block_[state]];
        if (block.n_marked == 0) touched.push_back(block_[state]);
        const int32_t to_place = block.first + block.n_marked++;
        const int32_t other = order_[to_place];
        Put(other, place_[state]);
        Put(state, to_place);
      }
    }
    for (const int32_t b : touched) {
      Block& block = blocks_[b];
      const int32_t middle = block.first + block.n_marked;
      block.n_marked = 0;
      if (middle == block.end) continue;
      Block smaller = block;
      if (middle - block.first <= block.end - middle) {
        smaller.end = middle;
        block.first = middle;
      } else {
        smaller.first = middle;
        block.end = middle;
      }
      const int32_t id = static_cast<int32_t>(blocks_.size());
      for (int32_t i = smaller.first; i < smaller.end; ++i) block_[order_[i]] = id;
      blocks_.push_back(smaller);
      pending.push_back(id);
    }
  }

  const Language& language_;
  const int32_t n_;
  const int32_t n_classes_;
  std::vector<int32_t> place_;  // of each state in order_
  std::vector<int32_t> block_;  // of each state
  std::vector<int32_t> order_;  // states, block by block
  std::vector<Block> blocks_;
  std::vector<int32_t> begins_;
  std::vector<int32_t> sources_;
};

// The texts that both automata accept or, if `is_difference`, a alone. A state is a pair of theirs;
// b's is -1 where b accepts nothing any more.
absl::StatusOr<Language> Product(const Language& a, const Language& b, bool is_difference,
                                 Budget& budget) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const Alphabet alphabet(a.alphabet(), b.alphabet(), pairs);
  std::unordered_map<int64_t, int32_t> ids;
  std::vector<std::pair<int32_t, int32_t>> states;
  const auto add = [&](int32_t s, int32_t t) {
    const int64_t key = int64_t{s} << 32 | uint32_t(t);
    const auto [found, is_new] = ids.try_emplace(key, static_cast<int32_t>(states.size()));
    if (is_new) states.emplace_back(s, t);
    return found->second;
  };
  add(0, 0);
  std::vector<int32_t> next;
  std::vector<bool> accepts;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto [s, t] = states[i];
    accepts.push_back(a.accepts(s) && (t >= 0 && b.accepts(t)) != is_difference);
    for (const auto& [class_a, class_b] : pairs) {
      const int32_t to_a = class_a < 0 ? -1 : a.Next(s, class_a);
      const int32_t to_b = class_b < 0 || t < 0 ? -1 : b.Next(t, class_b);
      next.push_back(to_a < 0 || (to_b < 0 && !is_difference) ? -1 : add(to_a, to_b));
    }
    RETURN_IF_ERROR(CheckTable(static_cast<int64_t>(states.size()), alphabet.n_classes(), budget));
    RETURN_IF_ERROR(budget.Spend(alphabet.n_classes()));
  }
  return Minimise(Language(alphabet, std::move(next), std::move(accepts)), budget);
}

}  // namespace

absl::StatusOr<Language> Determinise(const Nfa& nfa, int32_t start, int32_t accept,
                                     Budget& budget) {
  ASSIGN_OR_RETURN(const Language language, Subsets(nfa, accept, budget).Run(start));
  return Minimise(language, budget);
}

absl::StatusOr<Language> Minimise(const Language& language, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(4 * int64_t{language.n_states()} * language.alphabet().n_classes()));
  Partition partition(language);
  partition.Refine();
  return partition.Result();
}

absl::StatusOr<Language> Intersection(const Language& a, const Language& b, Budget& budget) {
  return Product(a, b, /*is_difference=*/false, budget);
}

absl::StatusOr<Language> Difference(const Language& a, const Language& b, Budget& budget) {
  return Product(a, b, /*is_difference=*/true, budget);
}

absl::StatusOr<Language> TextsOfLength(int64_t least, int64_t most, Budget& budget) {
  const int64_t n_states = most < 0 ? least + 1 : std::max(least, most) + 1;
  RETURN_IF_ERROR(CheckTable(n_states, 1, budget));
  RETURN_IF_ERROR(budget.Spend(n_states));
  std::vector<std::vector<int32_t>> members;
  std::vector<int32_t> next;
  std::vector<bool> accepts;
  for (int64_t n = 0; n < n_states; ++n) {
    accepts.push_back(n >= least && (most < 0 || n <= most));
    next.push_back(static_cast<int32_t>(n + 1 < n_states ? n + 1 : most < 0 ? n : -1));
  }
  return Language(Alphabet({NormalRanges({{0, kLastCodePoint}})}, members), std::move(next),
                  std::move(accepts));
}

absl::StatusOr<Language> ListedTexts(const std::vector<std::string>& texts, Budget& budget) {
  Nfa nfa;
  const int32_t start = nfa.AddState();
  const int32_t accept = nfa.AddState();
  std::map<std::pair<int32_t, char32_t>, int32_t> children;
  for (const std::string& text : texts) {
    std::u32string codes;
    Check(DecodeUtf8(text, codes), "a listed text is valid UTF-8");
    RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(codes.size())));
    RETURN_IF_ERROR(budget.CheckStates(static_cast<int64_t>(nfa.edges().size())));
    int32_t state = start;
    for (const char32_t code : codes) {
      const auto [found, is_new] = children.try_emplace({state, code}, 0);
      if (is_new) {
        found->second = nfa.AddState();
        nfa.AddEdge(state, found->second, CodeSet{{code, code}});
      }
      state = found->second;
    }
    nfa.AddEdge(state, accept, Nfa::Kind::kEmpty);
  }
  return Determinise(nfa, start, accept, budget);
}

absl::StatusOr<Language> MachineLanguage(const Machine& machine, Budget& budget) {
  std::vector<CodeSet> sets;
  for (const char symbol : machine.symbols)
    sets.push_back({{char32_t(uint8_t(symbol)), char32_t(uint8_t(symbol))}});
  std::vector<std::vector<int32_t>> members;
  const Alphabet alphabet(sets, members);
  std::string symbols(machine.symbols.size(), 0);  // [class]
  for (size_t i = 0; i < machine.symbols.size(); ++i) symbols[members[i][0]] = machine.symbols[i];

  std::unordered_map<int64_t, int32_t> ids = {{machine.start, 0}};
  std::vector<int64_t> states = {machine.start};
  std::vector<int32_t> next;
  std::vector<bool> accepts;
  for (size_t i = 0; i < states.size(); ++i) {
    const int64_t state = states[i];
    accepts.push_back(machine.accepts(state));
    for (const char symbol : symbols) {
      const int64_t to = machine.step(state, symbol);
      if (to < 0) {
        next.push_back(-1);
        continue;
      }
      const auto [found, is_new] = ids.try_emplace(to, static_cast<int32_t>(states.size()));
      if (is_new) states.push_back(to);
      next.push_back(found->second);
    }
    RETURN_IF_ERROR(CheckTable(static_cast<int64_t>(states.size()), alphabet.n_classes(), budget));
    RETURN_IF_ERROR(budget.Spend(alphabet.n_classes()));
  }
  return Minimise(Language(alphabet, std::move(next), std::move(accepts)), budget);
}

}  // namespace ovq::constraint
