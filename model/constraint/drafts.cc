#include "model/constraint/drafts.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/constraint/stacks.h"

namespace ovq::constraint {
namespace {

// The bytes of the shortest text, kNoText without one.
int32_t ShortestText(const Dfa& language) {
  const std::vector<Dfa::State>& states = language.states();
  std::vector<int32_t> distances(states.size(), kNoText), queue;
  if (!states.empty()) {
    distances[0] = 0;
    queue.push_back(0);
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    const Dfa::State& state = states[queue[i]];
    if (state.accepts) return distances[queue[i]];
    for (const Dfa::Range& range : state.ranges) {
      if (distances[range.to] != kNoText) continue;
      distances[range.to] = distances[queue[i]] + 1;
      queue.push_back(range.to);
    }
  }
  return kNoText;
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

}  // namespace

absl::Status Drafts::Make() {
  RETURN_IF_ERROR(Copy());
  FindNullable();
  RETURN_IF_ERROR(CheckLeftRecursion());
  RemoveEmptyItems();
  return Measure();
}

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

// Measures all expressions, in ascending order, so that each value is final (Knuth's generalization
// of Dijkstra's algorithm). value(draft, n_measured, newest) is that of an expression of which so
// many parts are measured, `newest` last, or kNoText where they do not suffice.
template <class Value>
void Drafts::MeasureBy(int32_t Draft::*measure, const Value& value) {
  using Entry = std::pair<int32_t, int32_t>;  // value, draft
  const std::vector<std::vector<int32_t>> users = Users();
  std::vector<int32_t> n_measured(drafts_.size());
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto offer = [&](int32_t i, int32_t newest) {
    const int32_t offered = value(drafts_[i], n_measured[i], newest);
    if (offered < drafts_[i].*measure) queue.emplace(offered, i);
  };
  for (size_t i = 0; i < drafts_.size(); ++i) offer(static_cast<int32_t>(i), 0);
  while (!queue.empty()) {
    const auto [offered, i] = queue.top();
    queue.pop();
    if (drafts_[i].*measure != kNoText) continue;
    drafts_[i].*measure = offered;
    for (const int32_t user : users[i]) {
      ++n_measured[user];
      offer(user, offered);
    }
  }
}

absl::Status Drafts::Measure() {
  MeasureBy(&Draft::height, [this](const Draft& draft, int32_t n_measured, int32_t newest) {
    return Height(draft, n_measured, newest);
  });
  MeasureBy(&Draft::shortest, [this](const Draft& draft, int32_t n_measured, int32_t newest) {
    return Shortest(draft, n_measured, newest);
  });
  for (const int32_t i : copied_) {
    if (drafts_[i].kind == Grammar::Kind::kRule && drafts_[i].height == kNoText) {
      return absl::InvalidArgumentError(
          absl::StrCat("rule ", Quoted(drafts_[i].text), " has no text that ends"));
    }
  }
  const int32_t height = drafts_[grammar_.root()].height;
  if (height == kNoText) return absl::InvalidArgumentError("the constraint has no text that ends");
  if (height > kMaxDepth) {
    return absl::ResourceExhaustedError(absl::StrCat("the shortest nesting of the constraint is ",
                                                     height, " deep, at most ", kMaxDepth,
                                                     " are allowed"));
  }
  return absl::OkStatus();
}

int32_t Drafts::Height(const Draft& draft, int32_t n_measured, int32_t newest) const {
  const auto n_parts = static_cast<int32_t>(draft.parts.size());
  switch (draft.kind) {
    case Grammar::Kind::kLiteral:
      return 0;
    case Grammar::Kind::kTerminal:
      return ShortestText(*draft.language) == kNoText ? kNoText : 0;
    case Grammar::Kind::kSequence: {
      if (n_measured < n_parts) return kNoText;
      int32_t height = 0;
      for (int32_t i = 0; i < n_parts; ++i) {
        height = std::max(height, (i + 1 < n_parts ? 1 : 0) + drafts_[draft.parts[i]].height);
      }
      return height;
    }
    case Grammar::Kind::kChoice:
    case Grammar::Kind::kRule:
      return n_measured == 1 ? newest : kNoText;
    case Grammar::Kind::kRepeat:
      if (draft.least == 0) return 0;
      return n_measured == 1 ? newest + 1 : kNoText;
  }
  return kNoText;
}

int32_t Drafts::Shortest(const Draft& draft, int32_t n_measured, int32_t newest) const {
  const auto bounded = [](int64_t bytes) {
    return static_cast<int32_t>(std::min<int64_t>(bytes, kNoText - 1));
  };
  switch (draft.kind) {
    case Grammar::Kind::kLiteral:
      return bounded(static_cast<int64_t>(draft.text.size()));
    case Grammar::Kind::kTerminal:
      return ShortestText(*draft.language);
    case Grammar::Kind::kSequence: {
      if (n_measured < static_cast<int32_t>(draft.parts.size())) return kNoText;
      int64_t bytes = 0;
      for (const int32_t part : draft.parts) bytes += drafts_[part].shortest;
      return bounded(bytes);
    }
    case Grammar::Kind::kChoice:
    case Grammar::Kind::kRule:
      return n_measured == 1 ? newest : kNoText;
    case Grammar::Kind::kRepeat:
      if (draft.least == 0) return 0;
      return n_measured == 1 ? bounded(std::min<int64_t>(draft.least, kNoText) * newest) : kNoText;
  }
  return kNoText;
}

}  // namespace ovq::constraint
