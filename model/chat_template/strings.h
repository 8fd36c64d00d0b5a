// Python's str methods that templates use. All text is valid UTF-8; positions and lengths are code
// points unless in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::jinja {

bool IsSpace(char32_t c);  // str.isspace
std::string_view StripSpace(std::string_view text, bool left, bool right);
// Strips the characters in `chars` from the ends.
std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Title(std::string_view text);
std::string Capitalize(std::string_view text);

// Number of bytes of the first n characters, or of all if there are fewer.
size_t PrefixBytes(std::string_view text, int64_t n_chars);
std::vector<std::string_view> Chars(std::string_view text);

// Byte offset of `what`, npos if absent; time linear in both.
size_t FindBytes(std::string_view text, std::string_view what, size_t from = 0);

// Number of non-overlapping occurrences of `what`; for the empty text, the number of positions.
size_t Count(std::string_view text, std::string_view what);
// Replaces the first max_count occurrences.
std::string Replace(std::string_view text, std::string_view what, std::string_view by,
                    size_t max_count);

// Splits at the nonempty `separator`, at most max_splits times, from the left or the right.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    size_t max_splits, bool from_right);
std::vector<std::string_view> SplitSpace(std::string_view text, size_t max_splits, bool from_right);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// Whether the text is not empty and all characters are of the class.
bool IsDigits(std::string_view text);  // decimal digits and those like superscripts
bool IsAlphas(std::string_view text);
bool IsSpaces(std::string_view text);
// Whether there is a cased character and all cased ones have this case.
bool IsLowerCase(std::string_view text);
bool IsUpperCase(std::string_view text);

}  // namespace ovq::jinja
