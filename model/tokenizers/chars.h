// Characters of UTF-8 text and their classes, by Unicode's general categories.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ovq {

// The character at `at` of valid UTF-8; `at` moves behind it.
char32_t NextChar(std::string_view text, size_t& at);
// The last one of a text that has one.
char32_t LastChar(std::string_view text);
void AppendChar(char32_t c, std::string& text);
// Of UTF-8 text.
size_t CountChars(std::string_view text);

bool IsWhitespace(char32_t c);      // White_Space
bool IsNumber(char32_t c);          // N*: also vulgar fractions and superscripts
bool IsPunctuation(char32_t c);     // P*, and all of ASCII's punctuation
bool IsWordChar(char32_t c);        // \w: letters, marks, digits, connectors
bool IsMark(char32_t c);            // M*
bool IsNonspacingMark(char32_t c);  // Mn
bool IsOther(char32_t c);           // C*: controls, formats, what is not assigned

bool IsLetter(char32_t c);   // L*
bool IsDecimal(char32_t c);  // Nd

// One character in another case, which may be several.
void AppendLower(char32_t c, std::string& text);
void AppendUpper(char32_t c, std::string& text);
void AppendTitle(char32_t c, std::string& text);

// Without what stands at its ends.
std::string_view StripWhitespace(std::string_view text, bool left, bool right);

}  // namespace ovq
