// UTF-8 characters and their Unicode general categories.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ovq::model {

// The character at offset `at` of valid UTF-8; moves `at` past it.
char32_t NextChar(std::string_view text, size_t& at);
// The last character of a nonempty text.
char32_t LastChar(std::string_view text);
void AppendChar(char32_t c, std::string& text);
// Number of characters of UTF-8 text.
size_t CountChars(std::string_view text);

bool IsWhitespace(char32_t c);      // White_Space
bool IsNumber(char32_t c);          // N*: vulgar fractions and superscripts included
bool IsPunctuation(char32_t c);     // P*, and all ASCII punctuation
bool IsWordChar(char32_t c);        // \w of Rust: alphabetic, marks, digits, connectors, joiners
bool IsMark(char32_t c);            // M*
bool IsNonspacingMark(char32_t c);  // Mn
bool IsOther(char32_t c);           // C*: controls, formats, unassigned

bool IsLetter(char32_t c);   // L*
bool IsDecimal(char32_t c);  // Nd

// Appends the character in another case, which may be several characters.
void AppendLower(char32_t c, std::string& text);
void AppendUpper(char32_t c, std::string& text);
void AppendTitle(char32_t c, std::string& text);

// Strips the characters for which `is_stripped` holds from the ends.
template <class IsStripped>
std::string_view Strip(std::string_view text, bool left, bool right, IsStripped is_stripped) {
  for (size_t at = 0; left && !text.empty() && is_stripped(NextChar(text, at)); at = 0) {
    text.remove_prefix(at);
  }
  while (right && !text.empty() && is_stripped(LastChar(text))) {
    while ((text.back() & 0xc0) == 0x80) text.remove_suffix(1);
    text.remove_suffix(1);
  }
  return text;
}
inline std::string_view StripWhitespace(std::string_view text, bool left, bool right) {
  return Strip(text, left, right, IsWhitespace);
}

}  // namespace ovq::model
