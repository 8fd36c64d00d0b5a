// Prompts as bytes: where they come from, whether they are text, and cutting long ones.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ovq {

// Offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms).
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Pieces of at most max_bytes (at least 4) that add up to the text, none ending within a character.
// A piece ends after a line where its last quarter has one, so that few tokens are cut in two.
// One empty piece for an empty text.
std::vector<std::string_view> SplitPrompt(std::string_view text, size_t max_bytes);

// All bytes of a file, of stdin for fd 0. Empty and errno set on failure.
std::optional<std::string> ReadAll(int fd);
std::optional<std::string> ReadFile(const std::string& path);

}  // namespace ovq
