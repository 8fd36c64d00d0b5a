// Conversion to abseil's own string_view, which Debian's abseil has: it accepts std::string but not
// std::string_view.
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace ovq {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace ovq
