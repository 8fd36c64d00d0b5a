// Text for messages, and UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace ovq {

// abseil's own string_view, which Debian's abseil has: it accepts std::string but not
// std::string_view.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

// A name from a file, made safe for a message: quoted, escaped, at most 120 characters.
std::string Quoted(std::string_view name);

// Whether the text is 1 to 64 characters A-Z a-z 0-9 . _ -
bool IsName(std::string_view text);

// The value of a hexadecimal digit; empty for any other character.
constexpr std::optional<uint32_t> HexDigit(char32_t c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char32_t lower = c | 0x20;
  return lower >= 'a' && lower <= 'f' ? std::optional<uint32_t>(lower - 'a' + 10) : std::nullopt;
}

// The text of a URI, in which "%2F" is "/"; nothing where two digits do not follow a "%".
std::optional<std::string> PercentDecoded(std::string_view text);

// Offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms);
// empty if there is none.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// Moves all complete text from the front of `pending` to the result, as valid UTF-8: each maximal
// subpart of a character that can never become valid is replaced by U+FFFD. An unfinished character
// stays in `pending`.
std::string ConsumeUtf8(std::string& pending);
// The text as valid UTF-8, replaced likewise; an unfinished character at its end is replaced, too.
std::string ValidUtf8(std::string text);

}  // namespace ovq
