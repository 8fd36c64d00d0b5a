// CompileGrammar: expressions are copied, checked, freed of what has no text, and laid out.
//
// No dead end: states of terminals from which none accepts are dropped (Trim), expressions without
// a text are dropped or refused (Measure), an item of a repeat consumes a byte (RemoveEmptyItems),
// and the depth that an expression needs is known (Measure), so that no stack is entered that could
// only go on beyond kMaxDepth (Frame::need).
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/constraint/constraint.h"
#include "model/constraint/stacks.h"

namespace ovq::constraint {
namespace {

constexpr int32_t kNoHeight = std::numeric_limits<int32_t>::max();

// An expression while it is compiled. A kRule is an alias of its one part.
struct Draft {
  Grammar::Kind kind = Grammar::Kind::kSequence;
  std::string text = {};
  std::vector<int32_t> parts = {};
  int64_t least = 0, most = -1;
  std::shared_ptr<const Dfa> language = {};
  bool nullable = false;
  int32_t height = kNoHeight;  // kNoHeight: it has no text
};

// The states from which an accepting one is reached.
std::vector<bool> FindLive(const std::vector<Dfa::State>& states) {
  std::vector<std::vector<int32_t>> sources(states.size());
  std::vector<int32_t> queue;
  std::vector<bool> live(states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    for (const Dfa::Range& range : states[i].ranges) {
      sources[range.to].push_back(static_cast<int32_t>(i));
    }
    if (!states[i].accepts) continue;
    live[i] = true;
    queue.push_back(static_cast<int32_t>(i));
  }
  while (!queue.empty()) {
    const int32_t state = queue.back();
    queue.pop_back();
    for (const int32_t source : sources[state]) {
      if (!live[source]) queue.push_back(source);
      live[source] = true;
    }
  }
  return live;
}

// The language without the empty text: a new start, which does not accept.
Dfa WithoutEmptyText(const Dfa& language) {
  std::vector<Dfa::State> states{language.states()[0]};
  states[0].accepts = false;
  states.insert(states.end(), language.states().begin(), language.states().end());
  for (Dfa::State& state : states) {
    for (Dfa::Range& range : state.ranges) ++range.to;
  }
  return Dfa(std::move(states));
}

// The texts as a tree of their bytes.
Dfa TextTree(const std::set<std::string>& texts) {
  std::vector<Dfa::State> states(1);
  for (const std::string& text : texts) {  // ascending, so only a state's last range can fit
    int32_t at = 0;
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      if (states[at].ranges.empty() || states[at].ranges.back().first != byte) {
        states[at].ranges.push_back({byte, byte, static_cast<int32_t>(states.size())});
        states.emplace_back();
      }
      at = states[at].ranges.back().to;
    }
    states[at].accepts = true;
  }
  return Dfa(std::move(states));
}

// Copies what is reachable from the root and finds what is wrong with it.
class Drafts {
 public:
  Drafts(const Grammar& grammar, const Limits& limits) : grammar_(grammar), limits_(limits) {}

  // After it, drafts() have no left recursion, no repeat of an item that may be empty, and heights.
  absl::Status Make() {
    RETURN_IF_ERROR(Copy());
    FindNullable();
    RETURN_IF_ERROR(CheckLeftRecursion());
    RemoveEmptyItems();
    return Measure();
  }
  const std::vector<Draft>& drafts() const { return drafts_; }

 private:
  absl::Status Charge(int64_t steps);
  absl::Status Copy();
  absl::Status CopyOne(Grammar::Node node);
  absl::Status CountLanguage(const Dfa& language);
  absl::Status MergeTexts(int32_t choice);
  int32_t Add(Draft draft);
  int32_t AddPair(Grammar::Kind kind, int32_t first, int32_t second, bool nullable);
  std::vector<std::vector<int32_t>> Users() const;  // [draft]: whose part it is
  void FindNullable();
  absl::Status CheckLeftRecursion() const;
  std::vector<int32_t> FirstParts(int32_t i) const;
  void RemoveEmptyItems();
  int32_t NonEmpty(int32_t draft);
  void FillNonEmpty(int32_t from, int32_t to);
  absl::Status Measure();
  int32_t Height(const Draft& draft, int32_t n_measured, int32_t newest) const;

  const Grammar& grammar_;
  const Limits& limits_;
  std::vector<Draft> drafts_;  // [node of the grammar, then what is added]
  std::vector<int32_t> copied_;
  std::vector<int32_t> non_empty_;  // [draft]: the expression without the empty text, or -1
  std::vector<std::pair<int32_t, int32_t>> to_fill_;
  int64_t steps_ = 0, literal_bytes_ = 0, dfa_states_ = 0;
  std::set<const Dfa*> counted_;
};

absl::Status Drafts::Charge(int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.compile_steps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the constraint needs more than ", limits_.compile_steps, " steps to compile"));
}

absl::Status Drafts::Copy() {
  const auto& expressions = grammar_.expressions();
  if (static_cast<int64_t>(expressions.size()) > limits_.nodes) {
    return absl::ResourceExhaustedError(absl::StrCat("the constraint has ", expressions.size(),
                                                     " expressions, at most ", limits_.nodes,
                                                     " are allowed"));
  }
  Check(grammar_.root() >= 0, "a grammar has a root");
  drafts_.resize(expressions.size());
  std::vector<bool> seen(expressions.size());
  copied_ = {grammar_.root()};
  seen[grammar_.root()] = true;
  for (size_t i = 0; i < copied_.size(); ++i) {
    RETURN_IF_ERROR(CopyOne(copied_[i]));
    for (const int32_t part : drafts_[copied_[i]].parts) {
      if (!seen[part]) copied_.push_back(part);
      seen[part] = true;
    }
  }
  for (const int32_t node : copied_) {
    if (drafts_[node].kind == Grammar::Kind::kChoice) RETURN_IF_ERROR(MergeTexts(node));
  }
  return absl::OkStatus();
}

absl::Status Drafts::CopyOne(Grammar::Node node) {
  const Grammar::Expression& from = grammar_.expressions()[node];
  RETURN_IF_ERROR(Charge(1 + static_cast<int64_t>(from.parts.size())));
  if (from.kind == Grammar::Kind::kRule && from.parts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("rule ", Quoted(from.text), " is not defined"));
  }
  if (from.kind == Grammar::Kind::kRepeat &&
      (from.least < 0 || (from.most && *from.most < from.least))) {
    return absl::InvalidArgumentError(absl::StrCat("repetition at least ", from.least,
                                                   " and at most ", from.most.value_or(-1),
                                                   " times: the bounds contradict each other"));
  }
  if (from.kind == Grammar::Kind::kLiteral) {
    literal_bytes_ += static_cast<int64_t>(from.text.size());
    if (literal_bytes_ > limits_.literal_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the constraint's texts have more than ", limits_.literal_bytes, " bytes"));
    }
  }
  if (from.kind == Grammar::Kind::kTerminal && counted_.insert(from.language.get()).second) {
    RETURN_IF_ERROR(CountLanguage(*from.language));
  }
  Draft& draft = drafts_[node];
  draft.kind = from.kind;
  draft.text = from.text;
  draft.parts = from.parts;
  draft.least = from.least;
  draft.most = from.most.value_or(-1);
  draft.language = from.language;
  return absl::OkStatus();
}

absl::Status Drafts::CountLanguage(const Dfa& language) {
  dfa_states_ += static_cast<int64_t>(language.states().size());
  if (dfa_states_ > limits_.dfa_states) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the constraint needs more than ", limits_.dfa_states, " states of automata"));
  }
  for (const Dfa::State& state : language.states()) {
    RETURN_IF_ERROR(Charge(1 + static_cast<int64_t>(state.ranges.size())));
  }
  return absl::OkStatus();
}

// A choice's literals become one terminal, so that a place in many of them is one stack.
absl::Status Drafts::MergeTexts(int32_t choice) {
  std::set<std::string> texts;
  std::vector<int32_t> others;
  for (const int32_t option : drafts_[choice].parts) {
    if (drafts_[option].kind == Grammar::Kind::kLiteral) {
      RETURN_IF_ERROR(Charge(static_cast<int64_t>(drafts_[option].text.size())));
      texts.insert(drafts_[option].text);
    } else {
      others.push_back(option);
    }
  }
  if (texts.size() < 2) return absl::OkStatus();
  Draft terminal;
  terminal.kind = Grammar::Kind::kTerminal;
  terminal.language = std::make_shared<const Dfa>(TextTree(texts));
  others.push_back(Add(std::move(terminal)));
  drafts_[choice].parts = std::move(others);
  return absl::OkStatus();
}

int32_t Drafts::Add(Draft draft) {
  drafts_.push_back(std::move(draft));
  return static_cast<int32_t>(drafts_.size()) - 1;
}

std::vector<std::vector<int32_t>> Drafts::Users() const {
  std::vector<std::vector<int32_t>> users(drafts_.size());
  for (size_t i = 0; i < drafts_.size(); ++i) {
    for (const int32_t part : drafts_[i].parts) users[part].push_back(static_cast<int32_t>(i));
  }
  return users;
}

void Drafts::FindNullable() {
  const std::vector<std::vector<int32_t>> users = Users();
  std::vector<int32_t> n_nullable(drafts_.size()), queue;  // parts that may be empty
  const auto mark = [&](int32_t i) {
    if (drafts_[i].nullable) return;
    const Draft& draft = drafts_[i];
    const auto n_parts = static_cast<int32_t>(draft.parts.size());
    switch (draft.kind) {
      case Grammar::Kind::kLiteral:
        if (!draft.text.empty()) return;
        break;
      case Grammar::Kind::kTerminal:
        if (draft.language->states().empty() || !draft.language->states()[0].accepts) return;
        break;
      case Grammar::Kind::kSequence:
        if (n_nullable[i] < n_parts) return;
        break;
      case Grammar::Kind::kRepeat:
        if (draft.least > 0 && n_nullable[i] == 0) return;
        break;
      case Grammar::Kind::kChoice:
      case Grammar::Kind::kRule:
        if (n_nullable[i] == 0) return;
        break;
    }
    drafts_[i].nullable = true;
    queue.push_back(i);
  };
  for (size_t i = 0; i < drafts_.size(); ++i) mark(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const int32_t part = queue.back();
    queue.pop_back();
    for (const int32_t user : users[part]) {
      ++n_nullable[user];
      mark(user);
    }
  }
}

// The parts with which a text of the expression may begin.
std::vector<int32_t> Drafts::FirstParts(int32_t i) const {
  const Draft& draft = drafts_[i];
  if (draft.kind != Grammar::Kind::kSequence) return draft.parts;
  std::vector<int32_t> first;
  for (const int32_t part : draft.parts) {
    first.push_back(part);
    if (!drafts_[part].nullable) break;
  }
  return first;
}

absl::Status Drafts::CheckLeftRecursion() const {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  struct Level {
    int32_t draft;
    std::vector<int32_t> parts;
    size_t next;
  };
  std::vector<Mark> marks(drafts_.size(), Mark::kNew);
  std::vector<Level> path;
  const auto open = [&](int32_t draft) {
    marks[draft] = Mark::kOpen;
    path.push_back({draft, FirstParts(draft), 0});
  };
  for (const int32_t start : copied_) {
    if (marks[start] == Mark::kNew) open(start);
    while (!path.empty()) {
      Level& level = path.back();
      if (level.next == level.parts.size()) {
        marks[level.draft] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const int32_t part = level.parts[level.next++];
      if (marks[part] == Mark::kNew) {
        open(part);
      } else if (marks[part] == Mark::kOpen) {
        std::string name;  // every circle passes through a rule
        for (size_t i = path.size(); i-- > 0;) {
          const Draft& draft = drafts_[path[i].draft];
          if (draft.kind == Grammar::Kind::kRule) name = draft.text;
          if (path[i].draft == part) break;
        }
        return absl::InvalidArgumentError(absl::StrCat(
            "rule ", Quoted(name), " is left recursive: a text of it may begin with itself"));
      }
    }
  }
  return absl::OkStatus();
}

// An item that may be empty is replaced by its texts that are not, any number of times up to the
// same bound: so an item always consumes a byte.
void Drafts::RemoveEmptyItems() {
  non_empty_.assign(drafts_.size(), -1);
  const size_t n = drafts_.size();
  for (size_t i = 0; i < n; ++i) {
    if (drafts_[i].kind != Grammar::Kind::kRepeat) continue;
    const int32_t item = drafts_[i].parts[0];
    if (!drafts_[item].nullable) continue;
    drafts_[i].least = 0;
    const int32_t replaced = NonEmpty(item);  // which moves drafts_
    drafts_[i].parts = {replaced};
  }
  while (!to_fill_.empty()) {
    const auto [from, to] = to_fill_.back();
    to_fill_.pop_back();
    FillNonEmpty(from, to);
  }
}

int32_t Drafts::NonEmpty(int32_t draft) {
  if (!drafts_[draft].nullable) return draft;
  if (draft < static_cast<int32_t>(non_empty_.size()) && non_empty_[draft] >= 0) {
    return non_empty_[draft];
  }
  const int32_t to = Add({});
  non_empty_.resize(drafts_.size(), -1);
  non_empty_[draft] = to;
  to_fill_.emplace_back(draft, to);
  return to;
}

// Makes `to` the texts of `from` but the empty one, which is one of them.
void Drafts::FillNonEmpty(int32_t from, int32_t to) {
  const Draft source = drafts_[from];
  Draft made;
  made.kind = Grammar::Kind::kChoice;  // without options: no text
  switch (source.kind) {
    case Grammar::Kind::kLiteral:
      break;
    case Grammar::Kind::kTerminal:
      made.kind = source.kind;
      made.language = std::make_shared<const Dfa>(WithoutEmptyText(*source.language));
      break;
    case Grammar::Kind::kRule:
    case Grammar::Kind::kChoice:
      for (const int32_t part : source.parts) made.parts.push_back(NonEmpty(part));
      break;
    case Grammar::Kind::kRepeat: {
      if (source.most == 0) break;
      const int32_t item = NonEmpty(source.parts[0]);
      Draft others;
      others.kind = source.kind;
      others.parts = {item};
      others.most = source.most < 0 ? -1 : source.most - 1;
      others.nullable = true;
      made.kind = Grammar::Kind::kSequence;
      made.parts = {item, Add(std::move(others))};
      break;
    }
    case Grammar::Kind::kSequence: {
      // All parts may be empty: the text begins with the first that is not.
      int32_t rest = -1, not_empty = -1;  // from part i on
      for (auto part = source.parts.rbegin(); part != source.parts.rend(); ++part) {
        const int32_t begun = NonEmpty(*part);
        if (rest < 0) {
          rest = *part;
          not_empty = begun;
          continue;
        }
        const int32_t begins = AddPair(Grammar::Kind::kSequence, begun, rest, false);
        not_empty = AddPair(Grammar::Kind::kChoice, begins, not_empty, false);
        rest = AddPair(Grammar::Kind::kSequence, *part, rest, true);
      }
      if (not_empty >= 0) made.parts = {not_empty};
      break;
    }
  }
  drafts_[to] = std::move(made);
}

int32_t Drafts::AddPair(Grammar::Kind kind, int32_t first, int32_t second, bool nullable) {
  Draft draft;
  draft.kind = kind;
  draft.parts = {first, second};
  draft.nullable = nullable;
  return Add(std::move(draft));
}

// Gives heights in ascending order, so that each is final (Knuth's generalization of Dijkstra's
// algorithm). An expression that gets none has no text.
absl::Status Drafts::Measure() {
  using Entry = std::pair<int32_t, int32_t>;  // height, draft
  const std::vector<std::vector<int32_t>> users = Users();
  std::vector<int32_t> n_measured(drafts_.size());
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto offer = [&](int32_t i, int32_t newest) {
    const int32_t height = Height(drafts_[i], n_measured[i], newest);
    if (height < drafts_[i].height) queue.emplace(height, i);
  };
  for (size_t i = 0; i < drafts_.size(); ++i) offer(static_cast<int32_t>(i), 0);
  while (!queue.empty()) {
    const auto [height, i] = queue.top();
    queue.pop();
    if (drafts_[i].height != kNoHeight) continue;
    drafts_[i].height = height;
    for (const int32_t user : users[i]) {
      ++n_measured[user];
      offer(user, height);
    }
  }
  for (const int32_t i : copied_) {
    if (drafts_[i].kind == Grammar::Kind::kRule && drafts_[i].height == kNoHeight) {
      return absl::InvalidArgumentError(
          absl::StrCat("rule ", Quoted(drafts_[i].text), " has no text that ends"));
    }
  }
  const int32_t height = drafts_[grammar_.root()].height;
  if (height == kNoHeight)
    return absl::InvalidArgumentError("the constraint has no text that ends");
  if (height > kMaxDepth) {
    return absl::ResourceExhaustedError(absl::StrCat("the shortest nesting of the constraint is ",
                                                     height, " deep, at most ", kMaxDepth,
                                                     " are allowed"));
  }
  return absl::OkStatus();
}

// The height by the parts that are measured, kNoHeight if they do not suffice or gave it before.
// newest: the height of the part that was measured last, which is the largest so far.
int32_t Drafts::Height(const Draft& draft, int32_t n_measured, int32_t newest) const {
  const auto n_parts = static_cast<int32_t>(draft.parts.size());
  switch (draft.kind) {
    case Grammar::Kind::kLiteral:
      return 0;
    case Grammar::Kind::kTerminal:
      return !draft.language->states().empty() && FindLive(draft.language->states())[0] ? 0
                                                                                        : kNoHeight;
    case Grammar::Kind::kSequence: {
      if (n_measured < n_parts) return kNoHeight;
      int32_t height = 0;
      for (int32_t i = 0; i < n_parts; ++i) {
        height = std::max(height, (i + 1 < n_parts ? 1 : 0) + drafts_[draft.parts[i]].height);
      }
      return height;
    }
    case Grammar::Kind::kChoice:
    case Grammar::Kind::kRule:
      return n_measured == 1 ? newest : kNoHeight;
    case Grammar::Kind::kRepeat:
      if (draft.least == 0) return 0;
      return n_measured == 1 ? newest + 1 : kNoHeight;
  }
  return kNoHeight;
}

}  // namespace

// Lays drafts out as an Automaton: what is reachable, without what has no text.
class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(const std::vector<Draft>& drafts)
      : drafts_(drafts), emitted_(drafts.size(), -1), resolved_(drafts.size(), -1) {
    made_.states_.push_back({0, 0, true});  // kEnd
  }

  std::shared_ptr<const Automaton> Build(int32_t root) {
    made_.root_ = Emit(root);
    while (!queue_.empty()) {
      const auto [draft, expression] = queue_.back();
      queue_.pop_back();
      Fill(drafts_[draft], expression);
    }
    return std::make_shared<const Automaton>(std::move(made_));
  }

 private:
  static constexpr int32_t kEnd = 0;  // the state that accepts and leads nowhere

  // The draft that stands for the same texts, without rules and lists of one.
  int32_t Resolve(int32_t i) {
    std::vector<int32_t> path;
    while (resolved_[i] < 0) {
      const Draft& draft = drafts_[i];
      const bool is_list = draft.kind == Grammar::Kind::kRule ||
                           draft.kind == Grammar::Kind::kChoice ||
                           draft.kind == Grammar::Kind::kSequence;
      const std::vector<int32_t> parts = is_list ? LiveParts(draft) : std::vector<int32_t>();
      if (parts.size() != 1) {
        resolved_[i] = i;
      } else {
        path.push_back(i);
        i = parts[0];
      }
    }
    for (const int32_t draft : path) resolved_[draft] = resolved_[i];
    return resolved_[i];
  }
  std::vector<int32_t> LiveParts(const Draft& draft) const {
    std::vector<int32_t> parts;
    for (const int32_t part : draft.parts) {
      const Draft& other = drafts_[part];
      if (other.height == kNoHeight) continue;
      const bool is_empty = other.kind == Grammar::Kind::kLiteral && other.text.empty();
      if (draft.kind != Grammar::Kind::kSequence || !is_empty) parts.push_back(part);
    }
    return parts;
  }

  int32_t Emit(int32_t draft) {
    draft = Resolve(draft);
    if (emitted_[draft] < 0) {
      emitted_[draft] = static_cast<int32_t>(made_.expressions_.size());
      made_.expressions_.emplace_back();
      queue_.emplace_back(draft, emitted_[draft]);
    }
    return emitted_[draft];
  }

  void Fill(const Draft& draft, int32_t index) {
    Automaton::Expression expression;
    expression.height = draft.height;
    std::vector<int32_t> parts;
    switch (draft.kind) {
      case Grammar::Kind::kLiteral:
        expression.kind = Automaton::Kind::kTerminal;
        expression.first = EmitText(draft.text);
        break;
      case Grammar::Kind::kTerminal:
        expression.kind = Automaton::Kind::kTerminal;
        expression.first = EmitLanguage(draft.language);
        break;
      case Grammar::Kind::kRepeat:
        expression.kind = Automaton::Kind::kRepeat;
        expression.least = draft.least;
        parts = LiveParts(draft);
        expression.most = parts.empty() ? 0 : draft.most;
        break;
      case Grammar::Kind::kSequence:
      case Grammar::Kind::kRule:
        expression.kind = Automaton::Kind::kSequence;
        parts = LiveParts(draft);
        break;
      case Grammar::Kind::kChoice:
        expression.kind = Automaton::Kind::kChoice;
        parts = LiveParts(draft);
        break;
    }
    if (expression.kind != Automaton::Kind::kTerminal) {
      expression.first = static_cast<int32_t>(made_.parts_.size());
      expression.n_parts = static_cast<int32_t>(parts.size());
      // Drafts have the heights of what they stand for.
      int32_t height = 0;
      for (size_t i = parts.size(); i-- > 0;) {
        height = std::max(height, (i + 1 < parts.size() ? 1 : 0) + drafts_[parts[i]].height);
        made_.parts_.push_back({parts[i], height});
      }
      std::reverse(made_.parts_.begin() + expression.first, made_.parts_.end());
      for (size_t i = 0; i < parts.size(); ++i) {
        const int32_t part = Emit(parts[i]);
        made_.parts_[expression.first + i].expression = part;
      }
    }
    made_.expressions_[index] = expression;
  }

  int32_t EmitText(const std::string& text) {
    int32_t next = kEnd;
    for (auto c = text.rbegin(); c != text.rend(); ++c) {
      const auto byte = static_cast<uint8_t>(*c);
      made_.states_.push_back({static_cast<int32_t>(made_.ranges_.size()), 1, false});
      made_.ranges_.push_back({byte, byte, next});
      next = static_cast<int32_t>(made_.states_.size()) - 1;
    }
    return next;
  }

  int32_t EmitLanguage(const std::shared_ptr<const Dfa>& language) {
    const auto [at, is_new] = languages_.try_emplace(language.get(), 0);
    if (!is_new) return at->second;
    const std::vector<Dfa::State>& states = language->states();
    const std::vector<bool> live = FindLive(states);
    std::vector<int32_t> emitted(states.size(), -1);
    auto next = static_cast<int32_t>(made_.states_.size());
    for (size_t i = 0; i < states.size(); ++i) {
      if (!live[i]) continue;
      bool leads_on = false;
      for (const Dfa::Range& range : states[i].ranges) leads_on = leads_on || live[range.to];
      emitted[i] = leads_on ? next++ : kEnd;
    }
    for (size_t i = 0; i < states.size(); ++i) {
      if (emitted[i] <= kEnd) continue;
      Automaton::State state{static_cast<int32_t>(made_.ranges_.size()), 0, states[i].accepts};
      for (const Dfa::Range& range : states[i].ranges) {
        if (emitted[range.to] < 0) continue;
        made_.ranges_.push_back({range.first, range.last, emitted[range.to]});
        ++state.n_ranges;
      }
      made_.states_.push_back(state);
    }
    return at->second = emitted[0];
  }

  const std::vector<Draft>& drafts_;
  std::vector<int32_t> emitted_;   // [draft]: the expression, -1 until it has one
  std::vector<int32_t> resolved_;  // [draft]: -1 until it is known
  std::vector<std::pair<int32_t, int32_t>> queue_;
  std::map<const Dfa*, int32_t> languages_;  // start states
  Automaton made_;
};

size_t Automaton::bytes() const {
  return states_.size() * sizeof(State) + ranges_.size() * sizeof(Range) +
         expressions_.size() * sizeof(Expression) + parts_.size() * sizeof(Part);
}

absl::StatusOr<std::shared_ptr<const Automaton>> CompileGrammar(const Grammar& grammar,
                                                                const Limits& limits) {
  Drafts drafts(grammar, limits);
  RETURN_IF_ERROR(drafts.Make());
  std::shared_ptr<const Automaton> automaton =
      AutomatonBuilder(drafts.drafts()).Build(grammar.root());
  Stacks stacks;
  if (!StackMachine(automaton).Begin(stacks)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the constraint is too ambiguous: a text has more than ", kMaxStacks, " beginnings"));
  }
  return automaton;
}

}  // namespace ovq::constraint
