#include "model/constraint/matcher.h"

#include <gtest/gtest.h>

#include "tests/model/constraint/constraint_test_util.h"
#include "tests/model/constraint/naive_language.h"

namespace ovq::constraint {
namespace {

using test::ByteVocabulary;
using test::CompileGbnf;
using test::kTestCache;
using test::MixedVocabulary;
using test::ShortTexts;

TEST(MatcherTest, AgreesWithTheNaiveRecogniser) {
  std::mt19937 random(1);
  const std::vector<std::string> texts = ShortTexts(6);
  int n_compiled = 0, n_texts = 0, n_left_recursive = 0, n_without_text = 0;
  for (int i = 0; i < 600; ++i) {
    const Grammar grammar = test::RandomGrammar(random).Make();
    const auto automaton = CompileGrammar(grammar, Limits());
    if (!automaton.ok()) {
      const std::string message(automaton.status().message());
      n_left_recursive += message.find("left recursive") != std::string::npos;
      if (message.find("no text") != std::string::npos) {
        ++n_without_text;
      }
      continue;
    }
    ++n_compiled;
    Matcher matcher(*automaton, ByteVocabulary(), kTestCache);
    test::NaiveLanguage naive(grammar);
    ASSERT_TRUE(naive.has_text()) << i;
    for (const std::string& text : texts) {
      const test::NaiveLanguage::Answer expected = naive.Ask(text);
      const std::optional<Place> place = matcher.Advance(matcher.Begin(), text);
      ASSERT_FALSE(matcher.exhausted());
      ASSERT_EQ(place.has_value(), expected.is_text || expected.is_beginning) << i << " " << text;
      if (!place) continue;
      ASSERT_EQ(place->may_end(), expected.is_text) << i << " " << text;
      ASSERT_EQ(place->may_go_on(), expected.is_beginning) << i << " " << text;
      ++n_texts;
    }
  }
  EXPECT_GT(n_compiled, 300);
  EXPECT_GT(n_texts, 10000);
  EXPECT_GT(n_left_recursive, 10);
  EXPECT_GT(n_without_text, 3);
}

TEST(MatcherTest, TheCacheIsBounded) {
  std::mt19937 random(5);
  const size_t cache_bytes = size_t{1} << 20;
  Matcher matcher(CompileGbnf(R"(root ::= ([a-c]{1,100000} "\"")*)"), MixedVocabulary(random),
                  cache_bytes);
  Place place = matcher.Begin();
  size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    if (i % 20 == 0) matcher.Mask(place);
    place = *matcher.Advance(place, "a");
    most = std::max(most, matcher.bytes());
  }
  EXPECT_GT(most, cache_bytes / 2);
  EXPECT_LT(most, 2 * cache_bytes);
  EXPECT_TRUE(matcher.Advance(place, "\"").has_value());
}

TEST(MatcherTest, CountersAreExactAndCostNothing) {
  const std::shared_ptr<const Automaton> automaton =
      CompileGbnf(R"(root ::= ("ab" | "c"){1000,1000000} "." )");
  EXPECT_LT(automaton->bytes(), 2000U);
  Matcher matcher(automaton, ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  for (int i = 1; i <= 1000000; ++i) {
    place = *matcher.Advance(place, i % 2 == 0 ? "c" : "ab");
    if (i != 998 && i != 999 && i != 1000 && i != 999999 && i != 1000000) continue;
    EXPECT_EQ(matcher.Advance(place, ".").has_value(), i >= 1000) << i;
    EXPECT_EQ(matcher.Advance(place, "c").has_value(), i < 1000000) << i;
  }
  EXPECT_EQ(matcher.Mask(place)->only, '.');
}

TEST(MatcherTest, NestedCountersAreExact) {
  Matcher matcher(CompileGbnf(R"(root ::= (("a"{2,3} "b"){2} "c"){1,2})"), ByteVocabulary(),
                  kTestCache);
  for (const auto& [text, is_text] :
       std::vector<std::pair<std::string, bool>>{{"aabaabc", true},
                                                 {"aaabaabc", true},
                                                 {"aabaaabcaabaabc", true},
                                                 {"aabc", false},
                                                 {"aabaabaabc", false},
                                                 {"aabaab", false},
                                                 {"aaaabaabc", false},
                                                 {"aabaabcaabaabcaabaabc", false}}) {
    const std::optional<Place> place = matcher.Advance(matcher.Begin(), text);
    EXPECT_EQ(place && place->may_end(), is_text) << text;
  }
}

TEST(MatcherTest, NestingIsBoundedWithoutADeadEnd) {
  Matcher matcher(CompileGbnf("root ::= \"(\" (root \",\")* \")\" | \"[\" twin \"]\"\n"
                              "twin ::= \"<\" root \">\""),
                  ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  std::vector<uint8_t> bytes;  // always opens if it may
  std::mt19937 random(7);
  for (int i = 0; i < 4 * kMaxDepth; ++i) {
    const auto mask = matcher.Mask(place);
    ASSERT_GT(mask->n_allowed, 0);
    uint8_t byte = random() % 2 == 0 ? '[' : '(';
    if (!mask->Allows(byte)) byte = byte == '[' ? '(' : '[';
    if (!mask->Allows(byte)) byte = '<';
    if (!mask->Allows(byte)) break;
    bytes.push_back(byte);
    place = *matcher.Advance(place, byte);
  }
  EXPECT_GT(bytes.size(), static_cast<size_t>(kMaxDepth / 3));
  EXPECT_LT(bytes.size(), static_cast<size_t>(2 * kMaxDepth));
  // From the deepest place the text ends.
  int n_closed = 0;
  while (!place.may_end()) {
    const auto mask = matcher.Mask(place);
    int byte = 0;
    for (const int closing : {')', ']', '>', ','}) {
      if (mask->Allows(closing)) byte = closing;
      if (byte != 0 && byte != ',') break;
    }
    ASSERT_NE(byte, 0);
    place = *matcher.Advance(place, byte);
    ASSERT_LT(++n_closed, 4 * kMaxDepth);
  }
}

TEST(MatcherTest, RightRecursionNeedsNoDepth) {
  Matcher matcher(CompileGbnf(R"(root ::= "a" root | "b")"), ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  for (int i = 0; i < 10 * kMaxDepth; ++i) place = *matcher.Advance(place, "a");
  EXPECT_TRUE(matcher.Advance(place, "b")->may_end());
  EXPECT_LT(matcher.bytes(), 10000U);
}

TEST(MatcherTest, AmbiguityIsBoundedAndSaysSo) {
  // Each a may be one item or a part of one, so that the counts spread.
  Matcher matcher(CompileGbnf(R"(root ::= ("a" | "aa" | "aaa"){0,100000} ".")"), ByteVocabulary(),
                  kTestCache);
  std::optional<Place> place = matcher.Begin();
  int n_bytes = 0;
  for (; n_bytes < 5000; ++n_bytes) {
    const std::optional<Place> next = matcher.Advance(*place, "a");
    if (!next) break;
    EXPECT_FALSE(matcher.exhausted());
    place = next;
  }
  EXPECT_TRUE(matcher.exhausted());
  EXPECT_GT(n_bytes, static_cast<int>(kMaxStacks) / 4);
  EXPECT_LT(n_bytes, 2 * static_cast<int>(kMaxStacks));
  // Another byte still fits; the mask has both, because its representative is less ambiguous.
  EXPECT_TRUE(matcher.Advance(*place, ".").has_value());
  EXPECT_FALSE(matcher.exhausted());
  EXPECT_TRUE(matcher.Mask(*place)->Allows('.'));
  EXPECT_FALSE(matcher.exhausted());
}

// Texts in parallel of which each has frames of its own: the places of long answers stay small.
TEST(MatcherTest, TheFramesOfAPlaceAreBounded) {
  for (const int n_texts : {10, 500}) {
    SCOPED_TRACE(n_texts);
    std::string grammar = "root ::= s0";
    for (int i = 1; i < n_texts; ++i) grammar += " | s" + std::to_string(i);
    for (int i = 0; i < n_texts; ++i) {
      const std::string n = std::to_string(i);
      grammar += "\ns" + n + " ::= \"(\" s" + n + " \"" + n + ";\" | \"x\"";
    }
    Matcher matcher(CompileGbnf(grammar), ByteVocabulary(), kTestCache);
    std::optional<Place> place = matcher.Begin();
    int depth = 0;
    while (const std::optional<Place> next = matcher.Advance(*place, "(")) {
      place = next;
      ++depth;
    }
    EXPECT_EQ(matcher.exhausted(), n_texts == 500);
    // Each text has two stacks, which go on or end.
    EXPECT_NEAR(depth, n_texts == 500 ? static_cast<int>(kMaxFrames) / (2 * n_texts) : kMaxDepth,
                4);
    // A text still ends from there.
    EXPECT_TRUE(matcher.Advance(*place, "x").has_value());
    EXPECT_TRUE(matcher.Mask(*place)->Allows('x'));
  }
}

TEST(MatcherTest, TokensWithoutATextLeadNowhere) {
  Matcher matcher(CompileGbnf(R"(root ::= "a"*)"), ByteVocabulary(), kTestCache);
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), 256).has_value());
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), 257).has_value());
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), -1).has_value());
  EXPECT_FALSE(matcher.exhausted());
}

}  // namespace
}  // namespace ovq::constraint
