#include "model/constraint/matcher.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/model/constraint/constraint_test_util.h"
#include "tests/model/constraint/naive_language.h"

namespace ovq::constraint {
namespace {

using test::ByteVocabulary;
using test::CompileGbnf;
using test::kTestCache;

// All texts over a, b and c up to a length.
std::vector<std::string> ShortTexts(size_t length) {
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < length; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

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

}  // namespace
}  // namespace ovq::constraint
