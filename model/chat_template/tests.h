// What stands behind an `is`.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The test of that name; null if there is none.
const Builtin* FindTest(std::string_view name);

// Whether the test, which kSyntax says is not there, is passed.
bool CallTest(Context& context, std::string_view name, Args args);

}  // namespace ovq::jinja
