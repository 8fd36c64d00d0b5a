// The builtin tests: value is test.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The test of that name; null if there is none.
const Builtin* FindTest(std::string_view name);

// Result of the test. kSyntax if there is none of that name.
bool CallTest(Context& context, std::string_view name, Args args);

}  // namespace ovq::jinja
