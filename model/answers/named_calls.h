// The forms of calls that are known by a name, for models whose chat template shows another form
// than they write.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/answers/answer_syntax.h"

namespace ovq::answers {

// By the names that vLLM gives to its parsers of the same forms.
const std::vector<std::pair<std::string, CallSyntax>>& NamedCalls();

}  // namespace ovq::answers
