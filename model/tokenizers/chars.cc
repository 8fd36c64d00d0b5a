#include "model/tokenizers/chars.h"

#include <utf8.h>
#include <utf8proc.h>

#include <algorithm>

namespace ovq::model {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsAsciiPunctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
         (c >= 0x7b && c <= 0x7e);
}

// Letters in circles and squares are symbols, but alphabetic.
bool IsLetterSymbol(char32_t c) {
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
         (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

// The characters whose upper case is several characters, each followed by these (Unicode's
// SpecialCasing.txt).
constexpr std::string_view kLongUppers =
    " ßSS ŉʼN ǰJ̌ ΐΪ́ ΰΫ́ ևԵՒ ẖH̱ ẗT̈ ẘW̊ ẙY̊ ẚAʾ ὐΥ̓ ὒΥ̓̀ ὔΥ̓́ ὖΥ̓͂ ᾀἈΙ ᾁἉΙ ᾂἊΙ"
    " ᾃἋΙ ᾄἌΙ ᾅἍΙ ᾆἎΙ ᾇἏΙ ᾈἈΙ ᾉἉΙ ᾊἊΙ ᾋἋΙ ᾌἌΙ ᾍἍΙ ᾎἎΙ ᾏἏΙ ᾐἨΙ ᾑἩΙ ᾒἪΙ ᾓἫΙ ᾔἬΙ ᾕἭΙ"
    " ᾖἮΙ ᾗἯΙ ᾘἨΙ ᾙἩΙ ᾚἪΙ ᾛἫΙ ᾜἬΙ ᾝἭΙ ᾞἮΙ ᾟἯΙ ᾠὨΙ ᾡὩΙ ᾢὪΙ ᾣὫΙ ᾤὬΙ ᾥὭΙ ᾦὮΙ ᾧὯΙ ᾨὨΙ"
    " ᾩὩΙ ᾪὪΙ ᾫὫΙ ᾬὬΙ ᾭὭΙ ᾮὮΙ ᾯὯΙ ᾲᾺΙ ᾳΑΙ ᾴΆΙ ᾶΑ͂ ᾷΑ͂Ι ᾼΑΙ ῂῊΙ ῃΗΙ ῄΉΙ ῆΗ͂ ῇΗ͂Ι ῌΗΙ"
    " ῒΪ̀ ΐΪ́ ῖΙ͂ ῗΪ͂ ῢΫ̀ ΰΫ́ ῤΡ̓ ῦΥ͂ ῧΫ͂ ῲῺΙ ῳΩΙ ῴΏΙ ῶΩ͂ ῷΩ͂Ι ῼΩΙ ﬀFF ﬁFI ﬂFL"
    " ﬃFFI ﬄFFL ﬅST ﬆST ﬓՄՆ ﬔՄԵ ﬕՄԻ ﬖՎՆ ﬗՄԽ"
    " ";

// The upper case of c if it has several characters, else empty.
std::string_view LongUpper(char32_t c) {
  if (c < 0xdf) return "";
  std::string key = " ";
  AppendChar(c, key);
  const size_t begin = kLongUppers.find(key);
  if (begin == std::string_view::npos) return "";
  const std::string_view rest = kLongUppers.substr(begin + key.size());
  return rest.substr(0, rest.find(' '));
}

}  // namespace

char32_t NextChar(std::string_view text, size_t& at) {
  const char* byte = text.data() + at;
  const char32_t c = utf8::unchecked::next(byte);
  at = static_cast<size_t>(byte - text.data());
  return c;
}

char32_t LastChar(std::string_view text) {
  const char* byte = text.data() + text.size();
  return utf8::unchecked::prior(byte);
}

void AppendChar(char32_t c, std::string& text) {
  utf8::unchecked::append(static_cast<uint32_t>(c), std::back_inserter(text));
}

size_t CountChars(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xc0) != 0x80; }));
}

bool IsWhitespace(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsNumber(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return IsAsciiPunctuation(c) ||
         (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO);
}

bool IsWordChar(char32_t c) {
  const utf8proc_category_t category = Category(c);
  const bool joins = c == 0x200c || c == 0x200d;
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || joins || IsLetterSymbol(c);
}

bool IsMark(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool IsNonspacingMark(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_MN; }

bool IsLetter(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsOther(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_CC;
}

void AppendLower(char32_t c, std::string& text) {
  if (c == 0x130) {  // the only capital whose lower case has two characters
    text += "i\xcc\x87";
    return;
  }
  AppendChar(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

void AppendUpper(char32_t c, std::string& text) {
  if (const std::string_view upper = LongUpper(c); !upper.empty()) {
    text += upper;
  } else {
    AppendChar(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), text);
  }
}

void AppendTitle(char32_t c, std::string& text) {
  auto title = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
  if (c == U'\u00df') title = c;  // Unicode has no simple mapping of it, utf8proc a capital sharp s
  const std::string_view upper = LongUpper(c);
  if (title != c || upper.empty()) return AppendChar(title, text);
  size_t at = 0;
  AppendChar(NextChar(upper, at), text);
  while (at < upper.size()) AppendLower(NextChar(upper, at), text);
}

}  // namespace ovq::model
