#include "model/tokenizers/chars.h"

#include <gtest/gtest.h>

#include "model/tokenizers/byte_alphabet.h"

namespace ovq::model::test {
namespace {

TEST(Chars, Classes) {
  for (const char32_t c : {U'\t', U' ', U'\x85', U'\xa0', U'\u2003', U'\u3000'}) {
    EXPECT_TRUE(IsWhitespace(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'a', U'\u200b', U'\ufeff'}) EXPECT_FALSE(IsWhitespace(c));
  for (const char32_t c : {U'1', U'\xbd', U'\u2167', U'\xb2'}) EXPECT_TRUE(IsNumber(c));
  EXPECT_FALSE(IsNumber(U'a'));
  for (const char32_t c : {U'!', U'$', U'~', U'\u2026', U'\u3002'}) EXPECT_TRUE(IsPunctuation(c));
  EXPECT_FALSE(IsPunctuation(U'\u20ac'));
  for (const char32_t c :
       {U'a', U'_', U'1', U'\u4f60', U'\u0301', U'\u200c', U'\u200d', U'\u24b6', U'\U0001f130'})
    EXPECT_TRUE(IsWordChar(c)) << static_cast<uint32_t>(c);
  for (const char32_t c : {U'-', U' ', U'\xb2', U'\u200b', U'\u24ea'}) EXPECT_FALSE(IsWordChar(c));
  EXPECT_TRUE(IsMark(U'\u0903'));
  EXPECT_FALSE(IsNonspacingMark(U'\u0903'));
  EXPECT_TRUE(IsNonspacingMark(U'\u0301'));
  for (const char32_t c : {U'\x01', U'\u200b', U'\ue000', U'\U0010ffff'}) EXPECT_TRUE(IsOther(c));
  EXPECT_FALSE(IsOther(U'a'));
}

TEST(Chars, StripWhitespaceKeepsTheMiddle) {
  EXPECT_EQ(StripWhitespace("\xe3\x80\x80 a b\xc2\xa0", true, true), "a b");
  EXPECT_EQ(StripWhitespace(" a ", false, true), " a");
  EXPECT_EQ(StripWhitespace(" a ", true, false), "a ");
  EXPECT_EQ(StripWhitespace("  ", true, true), "");
}

TEST(ByteAlphabet, EveryByteHasACharacterOfItsOwn) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  const std::string chars = BytesToChars(bytes);
  EXPECT_EQ(CountChars(chars), 256u);
  EXPECT_EQ(CharsToBytes(chars), bytes);
  EXPECT_EQ(BytesToChars(" \n!\xad"), "\xc4\xa0\xc4\x8a!\xc5\x83");
  EXPECT_EQ(CharsToBytes("a\xe2\x96\x81"), std::nullopt);
}

}  // namespace
}  // namespace ovq::model::test
