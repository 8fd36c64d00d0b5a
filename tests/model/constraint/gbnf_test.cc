#include <gtest/gtest.h>

#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint {
namespace {

bool Accepts(Matcher& matcher, std::string_view text) {
  const std::optional<Place> place = matcher.Advance(matcher.Begin(), text);
  return place && place->may_end();
}

struct GbnfCase {
  const char* grammar;
  std::vector<std::string> accepted, refused;
};

TEST(GbnfTest, AcceptsAndRefusesAsDocumented) {
  const std::vector<GbnfCase> cases = {
      {R"(root ::= "a" "b" | "c")", {"ab", "c"}, {"", "a", "abc", "b"}},
      {"root ::= \"a\"\n", {"a"}, {""}},
      {"# first\n\nroot ::= \"a\" # rest\n# last", {"a"}, {""}},
      {"root ::=\n  \"a\" |\n  \"b\"\nother ::= root", {"a", "b"}, {""}},
      {"root ::= (\"a\"\n \"b\"\n | \"c\"\n) d-1\r\nd-1 ::= \"d\"", {"abd", "cd"}, {"ab", "c"}},
      {R"(root ::= "ab"* "c"+ "d"?)", {"c", "ababccd"}, {"", "ab", "aac", "abdd"}},
      {R"(root ::= "a"{2} "b"{1,2} "c"{2,} "d"{0,1})",
       {"aabcc", "aabbcccd"},
       {"abcc", "aabc", "aabbbcc"}},
      {R"(root ::= "a" | )", {"", "a"}, {"b"}},
      {R"(root ::= ("a" | "b")+ "c")", {"abac", "bc"}, {"c"}},
      {R"(root ::= [a-c0-9_-] [^a-c\n] [\]\[\\])",
       {"ad]", "-z[", "9中\\"},
       {"aa]", "d]", "a\n]", "adx"}},
      {R"(root ::= "\x41\u00e9\U0001F600\n\t\r\\\"")", {"Aé😀\n\t\r\\\""}, {"A"}},
      {R"(root ::= [\u4e00-\u9fff]+ .)", {"中文!", "文😀", "中中"}, {"中", "a!", "!中"}},
      {R"(root ::= .{2})", {"é中", "\n\n"}, {"é", "\xc3\xa9", "\xff\xff", "abc"}},
      {R"(root ::= [é-ü]?)", {"", "é", "ê", "ü"}, {"e", "\xc3", "ý"}},
      {"root ::= (\"a\" | \"b\") {3}", {"aba"}, {"ab"}},
      {"root ::= (\"a\" | ) \"b\"", {"b", "ab"}, {"a"}},
      {"root ::= (\"a\"+)? | (\"b\"*)*", {"", "aa", "bb"}, {"ab"}},
      // Two of llama.cpp's examples.
      {"root  ::= (expr \"=\" term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\n"
       "term  ::= num | \"(\" expr \")\"\nnum   ::= [0-9]+",
       {"1=2\n", "1+(2*3)=7\n4=4\n"},
       {"1+=2\n", "1=2", "(1=2\n"}},
      {"root   ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n"
       "move   ::= (pawn | nonpawn | castle) [+#]?\n"
       "nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
       "pawn   ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\ncastle ::= \"O-O\" \"-O\"?",
       {"1. e4 e5\n2. Nf3 Nc6\n", "1. d4 d5\n2. O-O-O exd8=Q+\n"},
       {"1. e4 e5\n", "1. e9 e5\n2. a1 a1\n"}},
  };
  for (const GbnfCase& one : cases) {
    SCOPED_TRACE(one.grammar);
    const std::shared_ptr<const Automaton> automaton = test::CompileGbnf(one.grammar);
    ASSERT_TRUE(automaton);
    Matcher matcher(automaton, test::ByteVocabulary(), test::kTestCache);
    for (const std::string& text : one.accepted) EXPECT_TRUE(Accepts(matcher, text)) << text;
    for (const std::string& text : one.refused) EXPECT_FALSE(Accepts(matcher, text)) << text;
  }
}

TEST(GbnfTest, ErrorsSayWhereAndWhat) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1: there is no rule \"root\""},
      {"a ::= \"b\"\n", "line 2, column 1: there is no rule \"root\""},
      {"root ::= a\nb ::= c", "line 1, column 10: rule 'a' is not defined"},
      {"root ::= \"é\" ?b", "line 1, column 15: rule 'b' is not defined"},
      {"root = \"a\"", "line 1, column 6: expected ::= behind the name of a rule"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is defined twice"},
      {"root ::= \"a", "line 1, column 10: this text has no closing quote"},
      {"root ::= [a", "line 1, column 10: this class has no closing bracket"},
      {"root ::= [z-a]", "line 1, column 11: the end of this range lies before its beginning"},
      {"root ::= []", "line 1, column 10: no character is of this class"},
      {"root ::= (\"a\"", "line 1, column 10: this parenthesis is not closed"},
      {"root ::= \"a\" )", "line 1, column 14: this parenthesis closes none"},
      {"root ::= *", "line 1, column 10: there is nothing before it to repeat"},
      {"root ::= \"a\"{", "line 1, column 14: expected a number"},
      {"root ::= \"a\"{2", "line 1, column 15: expected } behind the bounds of a repetition"},
      {"root ::= \"a\"{3,2}", "line 1, column 13: the bounds of this repetition are reversed"},
      {"root ::= \"a\"{9999999999}", "line 1, column 14: expected a number up to 1000000000"},
      {"root ::= \"\\q\"",
       "line 1, column 11: unknown escape; expected one of \\n \\r \\t \\\\ \\\" "
       "\\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH"},
      {"root ::= \"\\xg0\"", "line 1, column 11: expected 2 hexadecimal digits"},
      {"root ::= \"\\ud800\"", "line 1, column 11: this is no code point that a text may have"},
      {"root ::= <[123]>", "line 1, column 10: references to tokens are not supported"},
      {"root ::= !<[123]>", "line 1, column 10: references to tokens are not supported"},
      {"root ::= \"a\" %", "line 1, column 14: expected the end of the line"},
      {"root ::= \"\xff\"", "line 1, column 11: the grammar is not UTF-8"},
      {"::= \"a\"", "line 1, column 1: expected the name of a rule"},
  };
  for (const auto& [text, expected] : cases) {
    Grammar grammar;
    const absl::StatusOr<Grammar::Node> root = AddGbnf(text, grammar, Limits());
    ASSERT_FALSE(root.ok()) << text;
    EXPECT_EQ(std::string(root.status().message()), expected) << text;
  }
}

TEST(GbnfTest, NestingAndSizeAreBounded) {
  const auto error = [](const std::string& text, const Limits& limits) {
    Grammar grammar;
    return std::string(AddGbnf(text, grammar, limits).status().message());
  };
  Limits limits;
  const std::string open(100000, '('), close(100000, ')');
  EXPECT_EQ(error("root ::= " + open + "\"a\"" + close, limits),
            "line 1, column 74: parentheses are more than 64 deep");
  EXPECT_EQ(error("root ::= \"a\"" + std::string(100000, '*'), limits),
            "line 1, column 78: too many repetitions of one item");
  limits.nodes = 50;
  std::string many = "root ::= ";
  for (int i = 0; i < 60; ++i) many += "\"a\" ";
  EXPECT_EQ(error(many, limits), "the grammar has more than 50 expressions");
}

}  // namespace
}  // namespace ovq::constraint
