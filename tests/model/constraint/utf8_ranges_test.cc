#include "model/constraint/utf8_ranges.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint {
namespace {

bool IsSurrogate(char32_t code) { return code >= 0xd800 && code <= 0xdfff; }

TEST(Utf8RangesTest, AutomataAcceptExactlyTheirCodePoints) {
  std::mt19937 random(1);
  for (int i = 0; i < 4; ++i) {
    std::vector<CodePointRange> ranges;
    if (i == 0) ranges = {{0, kLastCodePoint}};
    for (int k = 0; k < 5 * i; ++k) {
      const auto first = static_cast<char32_t>(random() % (k % 2 == 0 ? 0x3000 : 0x110000));
      const auto length = static_cast<char32_t>(random() % (k % 3 == 0 ? 3 : 3000));
      ranges.push_back({first, first + length});
    }
    const Dfa inside = CodePointDfa(ranges), outside = CodePointDfa(ComplementRanges(ranges));
    for (char32_t code = 0; code <= kLastCodePoint; code += code < 0x3000 ? 1 : 7) {
      if (IsSurrogate(code)) continue;
      bool expected = false;
      for (const CodePointRange& range : ranges) {
        expected = expected || (range.first <= code && code <= range.last);
      }
      std::string text;
      AppendUtf8(code, text);
      ASSERT_EQ(test::Matches(inside, text), expected) << static_cast<uint32_t>(code);
      ASSERT_EQ(test::Matches(outside, text), !expected) << static_cast<uint32_t>(code);
      ASSERT_FALSE(test::Matches(inside, text + "a"));
    }
  }
}

TEST(Utf8RangesTest, NoSurrogateAndNoLongForm) {
  const Dfa any = CodePointDfa({{0, 0xffffffff}});
  for (const std::string text :
       {"", "\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_FALSE(test::Matches(any, text)) << text;
  }
  EXPECT_LT(any.states().size(), 12U);
}

TEST(Utf8RangesTest, RangesBecomeNormal) {
  using Ranges = std::vector<CodePointRange>;
  EXPECT_EQ(NormalRanges({{5, 9}, {1, 3}, {4, 4}, {8, 12}, {20, 10}}), (Ranges{{1, 12}}));
  EXPECT_EQ(NormalRanges({{0xd000, 0xe000}}), (Ranges{{0xd000, 0xd7ff}, {0xe000, 0xe000}}));
  EXPECT_EQ(NormalRanges({{0x10fff0, 0xffffffff}}), (Ranges{{0x10fff0, kLastCodePoint}}));
  EXPECT_EQ(ComplementRanges({{0, 0xd7ff}, {0xe000, kLastCodePoint}}), Ranges{});
  EXPECT_EQ(ComplementRanges({}), (Ranges{{0, 0xd7ff}, {0xe000, kLastCodePoint}}));
  EXPECT_FALSE(test::Matches(CodePointDfa({}), "a"));
}

}  // namespace
}  // namespace ovq::constraint
