// Values in Python's notation.
#pragma once

#include <string>

namespace ovq::answers {

// The value as JSON: text, numbers, truth values, None, and lists, tuples and dicts of them. What
// is none of these, and no JSON either, is a text.
std::string FromPython(const std::string& text);

}  // namespace ovq::answers
