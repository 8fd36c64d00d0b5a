// CompileGrammar: expressions are copied, checked and freed of what has no text (drafts.h), and
// laid out.
//
// No dead end: states of terminals from which none accepts are dropped (FindLive), expressions
// without a text are dropped or refused (Drafts::Measure), an item of a repeat consumes a byte
// (Drafts::RemoveEmptyItems), and the depth that an expression needs is known (Drafts::Measure), so
// that no stack is entered that could only go on beyond kMaxDepth (Frame::need).
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/constraint/automaton.h"
#include "model/constraint/constraint.h"
#include "model/constraint/drafts.h"
#include "model/constraint/stacks.h"

namespace ovq::constraint {
namespace {

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
      if (other.height == kNoText) continue;
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
        if (!parts.empty()) expression.shortest = drafts_[parts[0]].shortest;
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
    return absl::ResourceExhaustedError(
        absl::StrCat("the constraint is too ambiguous: a text has more than ", kMaxStacks,
                     " beginnings, or they have more than ", kMaxFrames, " levels in all"));
  }
  return automaton;
}

}  // namespace ovq::constraint
