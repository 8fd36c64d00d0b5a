// Cutting long prompts.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ovq {

// Parts of at most max_bytes (at least 4) that add up to the text, none ending within a character.
// A part ends after the last line end of its last quarter if there is one, so that few tokens are
// cut in two. One empty part for an empty text.
std::vector<std::string_view> SplitPrompt(std::string_view text, size_t max_bytes);

}  // namespace ovq
