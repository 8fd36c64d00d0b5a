// Values in Python's notation.
#pragma once

#include <string>

namespace ovq::answers {

// The value as JSON: texts in any of Python's notations but f"" and b"", numbers, truth values,
// None, and lists, tuples and dicts of them. Any other that is no JSON either is a text.
std::string FromPython(const std::string& text);

}  // namespace ovq::answers
