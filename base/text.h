// Text: in messages, and as UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ovq {

// A name from a file as it may stand in a message: quoted, escaped, at most 120 characters.
std::string Quoted(std::string_view name);

// 1 to 64 characters A-Z a-z 0-9 . _ -
bool IsName(std::string_view text);

// Offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms).
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// Takes all that is decided off the front of `pending`, as valid UTF-8: characters as they are, and
// U+FFFD for each maximal subpart of one that can never become one. An unfinished character stays.
std::string ConsumeUtf8(std::string& pending);

}  // namespace ovq
