#include "model/tokenizers/normal_form.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "model/tokenizers/chars.h"

namespace ovq::model::test {
namespace {

std::string In(NormalForm form, std::string text) {
  Normalize(form, text);
  return text;
}

// The library's own composition of a whole text, which takes n^2 steps for n marks in a row.
std::string Reference(const std::string& text) {
  std::string copy = text;
  auto* const result = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(copy.c_str()));
  std::string normalized(reinterpret_cast<const char*>(result));
  std::free(result);
  return normalized;
}

TEST(NormalForm, ExamplesOfTheStandard) {
  // UAX 15, table 6 and figure 6: U+1E9B U+0323.
  const std::string text = "\xe1\xba\x9b\xcc\xa3";
  EXPECT_EQ(In(NormalForm::kNfc, text), text);
  EXPECT_EQ(In(NormalForm::kNfd, text), "\xc5\xbf\xcc\xa3\xcc\x87");
  EXPECT_EQ(In(NormalForm::kNfkc, text), "\xe1\xb9\xa9");
  EXPECT_EQ(In(NormalForm::kNfkd, text), "s\xcc\xa3\xcc\x87");
  EXPECT_EQ(In(NormalForm::kNfc, "\xe2\x84\xab"), "\xc3\x85");  // ANGSTROM SIGN
  EXPECT_EQ(In(NormalForm::kNfc, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"), "\xea\xb0\x81");
  EXPECT_EQ(In(NormalForm::kNfc, ""), "");
  // U+11A7 comes before the first final consonant, and composes with nothing.
  for (const NormalForm form : {NormalForm::kNfc, NormalForm::kNfkc}) {
    EXPECT_EQ(In(form, "\u1100\u1161\u11a7\u11a8"), "\uac00\u11a7\u11a8");
    EXPECT_EQ(In(form, "\uac00\u11a7"), "\uac00\u11a7");
  }
}

TEST(NormalForm, NfcOfAnyTextIsThatOfTheLibrary) {
  // Letters, marks of several classes, precomposed and Hangul characters, two excluded ones.
  constexpr char32_t kChars[] = {'a',    'e',    0x301,  0x323,  0x307,  0xe9,   0x1e69,  0x1100,
                                 0x1161, 0x11a8, 0xac00, 0x958,  0x212b, 0x9be,  0x9c7,   0x1f600,
                                 0x345,  0x3b1,  0x1fb3, 0x0f73, 0x344,  0x2adc, 0x1d15e, ' '};
  std::mt19937 random(1);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (size_t n = 1 + random() % 8; n > 0; --n) {
      AppendChar(kChars[random() % std::size(kChars)], text);
    }
    ASSERT_EQ(In(NormalForm::kNfc, text), Reference(text)) << ::testing::PrintToString(text);
  }
}

TEST(NormalForm, EveryCharacterBetweenTwoOthers) {
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text = "e";
    AppendChar(c, text);
    text += "\xcc\x81";
    ASSERT_EQ(In(NormalForm::kNfc, text), Reference(text)) << std::hex << static_cast<uint32_t>(c);
  }
}

// Would not end in n^2 steps.
TEST(NormalForm, ManyMarksInARow) {
  std::string text = "a";
  for (int i = 0; i < 300'000; ++i) text += "\xcc\x81\xcc\xa3";  // marks in the wrong order
  const std::string normalized = In(NormalForm::kNfd, text);
  EXPECT_EQ(normalized.size(), text.size());
  EXPECT_EQ(normalized.substr(0, 5), "a\xcc\xa3\xcc\xa3");
}

}  // namespace
}  // namespace ovq::model::test
