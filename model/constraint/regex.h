// Regular expressions as languages of code points.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "model/constraint/regular.h"

namespace ovq::constraint {

enum class Match : uint8_t {
  kWhole,   // the expression has to match the whole text
  kSearch,  // ... or some part of it
};

// The linear part of ECMAScript's expressions with the flag "u", and what RE2 has in common with
// it. depth: of nested groups, at most. InvalidArgument begins with "at character N: ".
absl::StatusOr<Language> RegexLanguage(std::string_view regex, Match match, int depth,
                                       Budget& budget);

}  // namespace ovq::constraint
