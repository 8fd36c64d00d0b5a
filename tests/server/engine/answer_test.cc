#include "server/engine/common/answer.h"

#include <gtest/gtest.h>

#include <random>

namespace ovq::engine {
namespace {

// Feeds `text` in parts of cut() bytes; returns the text sent and the match.
StopMatcher::Result Feed(StopMatcher matcher, const std::string& text,
                         const std::function<size_t()>& cut) {
  StopMatcher::Result all;
  for (size_t at = 0; at < text.size();) {
    const size_t n = std::min(cut(), text.size() - at);
    StopMatcher::Result result = matcher.Push(text.substr(at, n));
    all.text += result.text;
    if (result.matched) {
      all.matched = result.matched;
      return all;
    }
    at += n;
  }
  all.text += matcher.Flush();
  return all;
}

struct StopCase {
  std::vector<std::string> stops;
  std::string text, sent, sent_with_stop;
  std::optional<std::string> matched;
};

TEST(StopMatcher, TheCutOfTheTextChangesNothing) {
  const std::vector<StopCase> cases = {
      {{"END"}, "one END two", "one ", "one END", "END"},
      {{"END"}, "one EN two", "one EN two", "one EN two", std::nullopt},
      {{"END"}, "one EN", "one EN", "one EN", std::nullopt},
      {{"abab"}, "aababab", "a", "aabab", "abab"},
      {{"abc", "b"}, "xabc", "xa", "xab", "b"},
      {{"bc", "abc"}, "xabc", "x", "xabc", "abc"},
      {{"abcd", "bx"}, "abcbx", "abc", "abcbx", "bx"},
      {{"\n\n"}, "a\nb\n\nc", "a\nb", "a\nb\n\n", "\n\n"},
      {{"é!"}, "caféé!x", "café", "caféé!", "é!"},
      {{}, "anything", "anything", "anything", std::nullopt},
  };
  std::mt19937 random(5);
  for (const StopCase& c : cases) {
    for (int trial = 0; trial < 20; ++trial) {
      const auto cut = [&]() -> size_t {
        return trial == 0 ? 1 : trial == 1 ? 99 : 1 + random() % 4;
      };
      const StopMatcher::Result plain = Feed(StopMatcher(c.stops, false), c.text, cut);
      EXPECT_EQ(plain.text, c.sent) << c.text << " trial " << trial;
      EXPECT_EQ(plain.matched, c.matched) << c.text;
      EXPECT_EQ(Feed(StopMatcher(c.stops, true), c.text, cut).text, c.sent_with_stop) << c.text;
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStopString) {
  StopMatcher matcher({"stop", "top!"}, false);
  EXPECT_EQ(matcher.Push("a sto").text, "a ");
  EXPECT_EQ(matcher.Push("p").matched, "stop");
  StopMatcher other({"stop", "top!"}, false);
  EXPECT_EQ(other.Push("sto").text, "");
  EXPECT_EQ(other.Push("o").text, "stoo");
  EXPECT_EQ(other.Push("xto").text, "x");
  EXPECT_EQ(other.Flush(), "to");
}

}  // namespace
}  // namespace ovq::engine
