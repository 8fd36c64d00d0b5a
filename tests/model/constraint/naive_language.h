// A recogniser of grammars that shares no code with the product's: it tries everything.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "model/constraint/grammar.h"

namespace ovq::constraint::test {

// For grammars without left recursion.
class NaiveLanguage {
 public:
  explicit NaiveLanguage(const Grammar& grammar)
      : grammar_(grammar), has_text_(grammar.expressions().size()) {
    for (size_t round = 0; round <= has_text_.size(); ++round) {
      for (size_t i = 0; i < has_text_.size(); ++i) {
        if (HasText(grammar.expressions()[i])) has_text_[i] = true;
      }
    }
  }
  bool has_text() const { return has_text_[grammar_.root()]; }

  struct Answer {
    bool is_text = false;       // of the language
    bool is_beginning = false;  // of a longer text of the language
  };
  Answer Ask(std::string_view text) {
    text_ = text;
    known_.clear();
    goes_on_ = false;
    const std::set<size_t> ends = Ends(grammar_.root(), 0);
    return {ends.contains(text.size()), goes_on_};
  }

 private:
  bool HasText(const Grammar::Expression& expression) const {
    const auto has = [this](Grammar::Node part) { return has_text_[part]; };
    const std::vector<Grammar::Node>& parts = expression.parts;
    std::set<int32_t> seen;
    switch (expression.kind) {
      case Grammar::Kind::kLiteral:
        return true;
      case Grammar::Kind::kTerminal:
        return ReachesEnd(*expression.language, 0, seen);
      case Grammar::Kind::kChoice:
        return std::any_of(parts.begin(), parts.end(), has);
      case Grammar::Kind::kRepeat:
        return expression.least == 0 || has(parts[0]);
      default:
        return std::all_of(parts.begin(), parts.end(), has);
    }
  }

  // Where texts of the expression that begin at `at` may end. Sets goes_on_ where the text ends
  // within one.
  const std::set<size_t>& Ends(Grammar::Node node, size_t at) {
    if (!has_text_[node]) return nowhere_;
    const auto key = std::pair(node, at);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    std::set<size_t> ends = Find(grammar_.expressions()[node], at);
    return known_[key] = std::move(ends);
  }

  std::set<size_t> Find(const Grammar::Expression& expression, size_t at) {
    switch (expression.kind) {
      case Grammar::Kind::kLiteral:
        return FindLiteral(expression.text, at);
      case Grammar::Kind::kTerminal:
        return FindTerminal(*expression.language, at);
      case Grammar::Kind::kRule:
        return Ends(expression.parts.at(0), at);
      case Grammar::Kind::kChoice: {
        std::set<size_t> all;
        for (const Grammar::Node part : expression.parts) all.merge(std::set(Ends(part, at)));
        return all;
      }
      case Grammar::Kind::kSequence: {
        std::set<size_t> ends{at};
        for (const Grammar::Node part : expression.parts) ends = Extend(ends, part);
        return ends;
      }
      case Grammar::Kind::kRepeat:
        return FindRepeat(expression, at);
    }
    return {};
  }

  std::set<size_t> Extend(const std::set<size_t>& begins, Grammar::Node part) {
    std::set<size_t> ends;
    for (const size_t begin : begins) ends.merge(std::set(Ends(part, begin)));
    return ends;
  }

  std::set<size_t> FindLiteral(std::string_view literal, size_t at) {
    const std::string_view rest = text_.substr(at);
    if (rest.starts_with(literal)) return {at + literal.size()};
    if (literal.starts_with(rest)) goes_on_ = true;
    return {};
  }

  std::set<size_t> FindTerminal(const Dfa& language, size_t at) {
    const std::vector<Dfa::State>& states = language.states();
    std::set<size_t> ends;
    for (int32_t state = 0;; ++at) {
      if (states[state].accepts) ends.insert(at);
      if (at == text_.size()) {
        for (const Dfa::Range& range : states[state].ranges) {
          std::set<int32_t> seen;
          if (ReachesEnd(language, range.to, seen)) goes_on_ = true;
        }
        return ends;
      }
      const int byte = static_cast<unsigned char>(text_[at]);
      int32_t to = -1;
      for (const Dfa::Range& range : states[state].ranges) {
        if (byte >= range.first && byte <= range.last) to = range.to;
      }
      if (to < 0) return ends;
      state = to;
    }
  }
  static bool ReachesEnd(const Dfa& language, int32_t state, std::set<int32_t>& seen) {
    if (!seen.insert(state).second) return false;
    if (language.states()[state].accepts) return true;
    for (const Dfa::Range& range : language.states()[state].ranges) {
      if (ReachesEnd(language, range.to, seen)) return true;
    }
    return false;
  }

  std::set<size_t> FindRepeat(const Grammar::Expression& repeat, size_t at) {
    std::set<size_t> ends, now{at};
    // More items than bytes and least together bring nothing new.
    const int64_t enough = repeat.least + static_cast<int64_t>(text_.size()) + 1;
    const int64_t most = repeat.most ? std::min(*repeat.most, enough) : enough;
    for (int64_t i = 0;; ++i) {
      if (i >= repeat.least) ends.insert(now.begin(), now.end());
      if (i == most || now.empty()) return ends;
      now = Extend(now, repeat.parts[0]);
    }
  }

  const Grammar& grammar_;
  std::vector<bool> has_text_;  // [node]
  const std::set<size_t> nowhere_;
  std::string_view text_;
  bool goes_on_ = false;
  std::map<std::pair<Grammar::Node, size_t>, std::set<size_t>> known_;
};

}  // namespace ovq::constraint::test
