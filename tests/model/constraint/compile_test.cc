#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "model/constraint/constraint.h"
#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint {
namespace {

using test::ByteVocabulary;
using test::kTestCache;

// The errors of CompileGrammar name the rule.
TEST(CompileTest, RefusesWhatHasNoMeaning) {
  const auto error = [](std::string_view text, const Limits& limits = {}) {
    Grammar grammar;
    const absl::StatusOr<Grammar::Node> root = AddGbnf(text, grammar, limits);
    if (!root.ok()) return "parser: " + std::string(root.status().message());
    grammar.SetRoot(*root);
    return std::string(CompileGrammar(grammar, limits).status().message());
  };
  EXPECT_EQ(error("root ::= root \"a\""),
            "rule 'root' is left recursive: a text of it may begin with itself");
  EXPECT_EQ(error("root ::= \"a\" other\nother ::= \"b\"? third\nthird ::= \"c\" | other"),
            "rule 'other' is left recursive: a text of it may begin with itself");
  EXPECT_EQ(error("root ::= \"a\" (root?)* | \"b\""), "");
  EXPECT_EQ(error("root ::= (\"a\"* root?)* | \"b\""),
            "rule 'root' is left recursive: a text of it may begin with itself");
  EXPECT_EQ(error("root ::= \"a\" | endless\nendless ::= \"b\" endless"),
            "rule 'endless' has no text that ends");
  EXPECT_EQ(error("root ::= \"a\"\nunused ::= \"b\" unused"), "");
  Limits limits;
  limits.nodes = 3;
  EXPECT_EQ(error("root ::= (\"a\" | \"b\")+ | \"c\"", limits),
            "parser: the grammar has more than 3 expressions");
  limits = {};
  limits.dfa_states = 8;
  EXPECT_EQ(error("root ::= [a] [^b]", limits),
            "the constraint needs more than 8 states of automata");
  limits = {};
  limits.literal_bytes = 4;
  EXPECT_EQ(error("root ::= \"abc\" [a] \"de\"", limits),
            "the constraint's texts have more than 4 bytes");
  limits = {};
  limits.compile_steps = 5;
  EXPECT_EQ(error("root ::= [a-z] [^a] \"b\"", limits),
            "the constraint needs more than 5 steps to compile");
  // A text that needs more depth than there is.
  std::string deep = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) {
    deep += "r" + std::to_string(i) + " ::= \"(\" r" + std::to_string(i + 1) + " \")\"\n";
  }
  EXPECT_EQ(error(deep + "r2000 ::= \"a\""),
            "the shortest nesting of the constraint is 2000 deep, at most 1024 are allowed");
  EXPECT_EQ(error(deep + "r2000 ::= \"a\"\nr3000 ::= \"a\" | r1"),
            "the shortest nesting of the "
            "constraint is 2000 deep, at most 1024 are allowed");
  // Twice as many beginnings a rule.
  std::string wide = "root ::= r0\n";
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    wide += "r" + std::to_string(i) + " ::= " + next + " \"x\" | " + next + " \"y\"\n";
  }
  EXPECT_EQ(
      error(wide + "r20 ::= \"a\""),
      "the constraint is too ambiguous: a text has more than 1024 beginnings, or they have more "
      "than 32768 levels in all");
}

TEST(CompileTest, RulesThatAreNotDefinedAreNamed) {
  Grammar grammar;
  const Grammar::Node rule = grammar.Rule("missing");
  grammar.SetRoot(grammar.Sequence({grammar.Literal("a"), rule}));
  EXPECT_EQ(CompileGrammar(grammar, Limits()).status(),
            absl::InvalidArgumentError("rule 'missing' is not defined"));
}

TEST(CompileTest, BoundsThatContradictEachOtherAreRefused) {
  Grammar grammar;
  grammar.SetRoot(grammar.Repeat(grammar.Literal("a"), 3, 2));
  EXPECT_EQ(CompileGrammar(grammar, Limits()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompileTest, AChoiceOfTextsIsOneStack) {
  Source source{.kind = Source::Kind::kChoice};
  for (int i = 0; i < 5000; ++i) source.choices.push_back("text " + std::to_string(i));
  Grammar grammar;
  grammar.SetRoot(*AddSource(source, grammar, Limits()));
  const auto automaton = CompileGrammar(grammar, Limits());
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  Matcher matcher(*automaton, ByteVocabulary(), kTestCache);
  EXPECT_TRUE(matcher.Advance(matcher.Begin(), "text 4999")->may_end());
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), "text 5000").has_value());
  EXPECT_TRUE(matcher.Advance(matcher.Begin(), "text 499")->may_go_on());
  EXPECT_EQ(matcher.Mask(*matcher.Advance(matcher.Begin(), "te"))->only, 'x');
}

}  // namespace
}  // namespace ovq::constraint
