// Shared by the tests of constraints.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "model/constraint/matcher.h"

namespace ovq::constraint::test {

inline constexpr size_t kTestCache = size_t{16} << 20;

inline std::shared_ptr<const Automaton> CompileGbnf(std::string_view text) {
  Grammar grammar;
  const absl::StatusOr<Grammar::Node> root = AddGbnf(text, grammar, Limits());
  EXPECT_TRUE(root.ok()) << root.status() << "\n" << text;
  if (!root.ok()) return nullptr;
  grammar.SetRoot(*root);
  absl::StatusOr<std::shared_ptr<const Automaton>> automaton = CompileGrammar(grammar, Limits());
  EXPECT_TRUE(automaton.ok()) << automaton.status() << "\n" << text;
  return automaton.ok() ? *automaton : nullptr;
}

inline bool Matches(const Dfa& dfa, std::string_view text) {
  int32_t at = 0;
  if (dfa.states().empty()) return false;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t to = -1;
    for (const Dfa::Range& range : dfa.states()[at].ranges) {
      if (range.first <= byte && byte <= range.last) to = range.to;
    }
    if (to < 0) return false;
    at = to;
  }
  return dfa.states()[at].accepts;
}

// Each byte is a token, its own id; 256 ends.
inline std::shared_ptr<const Vocabulary> ByteVocabulary() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  texts.emplace_back();
  return std::make_shared<const Vocabulary>(texts, std::vector<int32_t>{256});
}

// All texts over a, b and c up to a length.
inline std::vector<std::string> ShortTexts(size_t length) {
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < length; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

// Every byte, texts of letters with quotes and characters of several bytes, pieces of them, some
// twice, tokens without a text, two ends.
inline std::shared_ptr<const Vocabulary> MixedVocabulary(std::mt19937& random) {
  const std::vector<std::string> pieces = {"a", "b",  "c", "\"", "\\", " ",        "1",
                                           "{", "\n", "é", "中", "😀",  "\xf0\x9f", "\x80"};
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint32_t n = random() % 6; n > 0; --n) {
      text += pieces[random() % (random() % 3 == 0 ? pieces.size() : 3)];
    }
    texts.push_back(std::move(text));
  }
  std::vector<int32_t> ends = {300, static_cast<int32_t>(texts.size()) - 1};
  return std::make_shared<const Vocabulary>(texts, std::move(ends));
}

// Small grammars over the bytes a, b and c, with rules that may be recursive, counted repeats and
// items that may be empty. Some are left recursive or without a text.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::mt19937& random) : random_(random) {}

  Grammar Make() {
    Grammar grammar;
    rules_.clear();
    const int n_rules = Upto(3);
    for (int i = 0; i <= n_rules; ++i) rules_.push_back(grammar.Rule("r" + std::to_string(i)));
    for (const Grammar::Node rule : rules_) grammar.Define(rule, Node(grammar, 3));
    grammar.SetRoot(rules_[0]);
    return grammar;
  }

 private:
  int Upto(int most) { return std::uniform_int_distribution<int>(0, most)(random_); }

  Grammar::Node Node(Grammar& grammar, int depth) {
    switch (depth == 0 ? Upto(2) : Upto(9)) {
      case 0:
      case 1: {
        std::string text;
        for (int i = Upto(2); i >= 0; --i) text += static_cast<char>('a' + Upto(2));
        return grammar.Literal(Upto(8) == 0 ? "" : text);
      }
      case 2:
        return Terminal(grammar);
      case 3:
        return rules_[Upto(static_cast<int>(rules_.size()) - 1)];
      case 4:
      case 5:
        return grammar.Choice(Nodes(grammar, depth, 1));
      case 6:
      case 7: {
        const int least = Upto(3);
        if (Upto(1) == 0) return grammar.Repeat(Node(grammar, depth - 1), least, std::nullopt);
        return grammar.Repeat(Node(grammar, depth - 1), least, least + Upto(3));
      }
      default:
        return grammar.Sequence(Nodes(grammar, depth, 0));
    }
  }
  std::vector<Grammar::Node> Nodes(Grammar& grammar, int depth, int least) {
    std::vector<Grammar::Node> nodes;
    for (int i = least + Upto(2); i > 0; --i) nodes.push_back(Node(grammar, depth - 1));
    return nodes;
  }
  Grammar::Node Terminal(Grammar& grammar) {
    std::vector<Dfa::State> states(1 + Upto(3));
    for (Dfa::State& state : states) {
      state.accepts = Upto(2) == 0;
      for (uint8_t byte = 'a'; byte <= 'c'; ++byte) {
        if (Upto(2) != 0) {
          state.ranges.push_back({byte, byte, Upto(static_cast<int>(states.size()) - 1)});
        }
      }
    }
    return grammar.Terminal(Dfa(std::move(states)));
  }

  std::mt19937& random_;
  std::vector<Grammar::Node> rules_;
};

}  // namespace ovq::constraint::test
