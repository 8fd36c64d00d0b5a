#include "model/tokenizers/chars.h"

#include <utf8.h>
#include <utf8proc.h>

#include <algorithm>

namespace ovq {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsAsciiPunctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
         (c >= 0x7b && c <= 0x7e);
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
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC;
}

bool IsMark(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool IsNonspacingMark(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_MN; }

bool IsOther(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_CC;
}

void AppendLower(char32_t c, std::string& text) {
  if (c == 0x130) {  // the one capital whose lower case is two characters
    text += "i\xcc\x87";
    return;
  }
  AppendChar(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

std::string_view StripWhitespace(std::string_view text, bool left, bool right) {
  for (size_t at = 0; left && !text.empty() && IsWhitespace(NextChar(text, at)); at = 0) {
    text.remove_prefix(at);
  }
  while (right && !text.empty() && IsWhitespace(LastChar(text))) {
    while ((text.back() & 0xc0) == 0x80) text.remove_suffix(1);
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace ovq
