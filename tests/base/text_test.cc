// UTF-8, sizes, names.
#include "base/text.h"

#include <gtest/gtest.h>

#include "base/values.h"

namespace ovq {
namespace {

TEST(Utf8, TheFirstBadByteIsFound) {
  EXPECT_EQ(FirstInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf"),
            std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("\xef\xbf\xbe\xef\xbf\xbf"), std::nullopt);  // noncharacters
  EXPECT_EQ(FirstInvalidUtf8("abc\xff"), 3u);
  EXPECT_EQ(FirstInvalidUtf8("a\xc0\x80"), 1u);         // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xe0\x9f\xbf"), 0u);      // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xed\xa0\x80"), 0u);      // a surrogate
  EXPECT_EQ(FirstInvalidUtf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(FirstInvalidUtf8("ab\xe2\x82"), 2u);        // ends too early
  EXPECT_EQ(FirstInvalidUtf8(std::string("\0\x80", 2)), 1u);
}

TEST(HexDigit, IsOneOfSixteenInEitherCase) {
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(HexDigit("0123456789abcdef"[i]), i);
    EXPECT_EQ(HexDigit("0123456789ABCDEF"[i]), i);
  }
  for (const char c : {'/', ':', '@', 'G', '`', 'g', ' ', '+', '\x10', '\xc1'}) {
    EXPECT_EQ(HexDigit(c), std::nullopt) << c;
  }
}

// Whether `second` may follow `lead`, by the table of well-formed sequences.
bool Continues(uint8_t lead, uint8_t second) {
  if (lead < 0xc2 || lead > 0xf4) return false;
  const int low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const int high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  return second >= low && second <= high;
}

TEST(Utf8, UnfinishedCharactersStayAndBadOnesAreReplaced) {
  const std::string bad(kReplacementCharacter);
  for (int lead = 0x80; lead < 0x100; ++lead) {
    const std::string first(1, static_cast<char>(lead));
    std::string pending = first;
    EXPECT_EQ(ConsumeUtf8(pending).empty(), lead >= 0xc2 && lead <= 0xf4) << lead;
    for (int second = 0; second < 0x100; ++second) {
      pending = first + static_cast<char>(second);
      const std::string text = ConsumeUtf8(pending);
      if (Continues(lead, second)) {
        EXPECT_EQ(text + pending, first + static_cast<char>(second)) << lead << " " << second;
        EXPECT_EQ(text.empty(), lead >= 0xe0) << lead << " " << second;
      } else {
        EXPECT_EQ(text.substr(0, bad.size()), bad) << lead << " " << second;
        EXPECT_EQ(pending.empty(), second < 0xc2 || second > 0xf4) << lead << " " << second;
      }
    }
  }
  std::string pending = "a\xf0\x9f\x98z\xe2\x82";
  EXPECT_EQ(ConsumeUtf8(pending), "a" + bad + "z");
  EXPECT_EQ(pending, "\xe2\x82");
  pending += "\xac";
  EXPECT_EQ(ConsumeUtf8(pending), "\xe2\x82\xac");
  EXPECT_EQ(pending, "");
  EXPECT_EQ(ValidUtf8("\xc3\xa9 \xe9t\xe2\x82"), "\xc3\xa9 " + bad + "t" + bad);
}

TEST(PercentDecoded, TwoDigitsFollowEachSign) {
  EXPECT_EQ(PercentDecoded("#/$defs/a%3Cb%3e"), "#/$defs/a<b>");
  EXPECT_EQ(PercentDecoded("%C3%A9%25"), "é%");
  EXPECT_EQ(PercentDecoded(""), "");
  for (const char* bad : {"%", "%4", "a%4", "%4g", "%%41"}) {
    EXPECT_EQ(PercentDecoded(bad), std::nullopt) << bad;
  }
}

TEST(Names, LettersDigitsAndThreeSigns) {
  EXPECT_TRUE(IsName("Az09._-"));
  EXPECT_TRUE(IsName(std::string(64, 'a')));
  for (const std::string& bad :
       {std::string(), std::string(65, 'a'), std::string("a b"), std::string("a/b"),
        std::string("\xc3\xa4"), std::string(1, '\0')}) {
    EXPECT_FALSE(IsName(bad)) << bad;
  }
}

TEST(Sizes, AreReadAndShown) {
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("4096B"), 4096u);
  EXPECT_EQ(*ParseSize("2K"), 2048u);
  EXPECT_EQ(*ParseSize("512M"), size_t{512} << 20);
  EXPECT_EQ(*ParseSize("8G"), size_t{8} << 30);
  EXPECT_EQ(*ParseSize("8gb"), size_t{8} << 30);
  EXPECT_EQ(*ParseSize("1.5GiB"), (size_t{3} << 30) / 2);
  EXPECT_EQ(*ParseSize("2T"), size_t{2} << 40);
  for (const char* bad : {"", "G", "x", "1..5G", "-1", "0", "1 G", "nan", "1e9", "99999999T"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
  EXPECT_EQ(SizeText(4097), "4097");
  EXPECT_EQ(SizeText(1536 << 10), "1536K");
  EXPECT_EQ(SizeText(size_t{2} << 40), "2T");
  EXPECT_EQ(SizeText(size_t{5} << 50), "5120T");
  EXPECT_EQ(SizeText(0), "0");
}

// Would not end if each byte were compared with all the rest.
TEST(Utf8, ManyBytesThatNeverBecomeCharacters) {
  std::string pending(1'000'000, '\xff');
  EXPECT_EQ(ConsumeUtf8(pending).size(), 3'000'000u);
  EXPECT_EQ(pending, "");
}

}  // namespace
}  // namespace ovq
