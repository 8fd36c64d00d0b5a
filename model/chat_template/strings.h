// Python's str, as far as templates ask for it. All text is valid UTF-8, places are code points.
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
// Without the characters of `chars` at the ends.
std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Title(std::string_view text);
std::string Capitalize(std::string_view text);

// Bytes of the first n characters, of all if there are fewer.
size_t PrefixBytes(std::string_view text, int64_t n_chars);
std::vector<std::string_view> Chars(std::string_view text);

// Where `what` begins, in time linear in both. npos if it does not.
size_t FindBytes(std::string_view text, std::string_view what, size_t from = 0);

// How often `what` is found, side by side; of the empty text, the number of places for it.
size_t Count(std::string_view text, std::string_view what);
// The first max_count of them replaced.
std::string Replace(std::string_view text, std::string_view what, std::string_view by,
                    size_t max_count);

// At most max_splits cuts at `separator`, which is not empty, from the left or the right.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    size_t max_splits, bool from_right);
std::vector<std::string_view> SplitSpace(std::string_view text, size_t max_splits, bool from_right);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// Whether there is a character and all are of the class.
bool IsDigits(std::string_view text);  // decimal digits and those like superscripts
bool IsAlphas(std::string_view text);
bool IsSpaces(std::string_view text);
// Whether a cased character is there and all that are have this case.
bool IsLowerCase(std::string_view text);
bool IsUpperCase(std::string_view text);

}  // namespace ovq::jinja
