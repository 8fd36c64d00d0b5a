// Cutting long prompts.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ovq {

// Pieces of at most max_bytes (at least 4) that add up to the text, none ending within a character.
// A piece ends after a line where its last quarter has one, so that few tokens are cut in two.
// One empty piece for an empty text.
std::vector<std::string_view> SplitPrompt(std::string_view text, size_t max_bytes);

}  // namespace ovq
