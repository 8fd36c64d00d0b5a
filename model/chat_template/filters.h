// What stands behind a |.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The filter of that name; null if there is none.
const Builtin* FindFilter(std::string_view name);

// The filter or an error of kSyntax.
Value CallFilter(Context& context, std::string_view name, Args args);

// Those of values and texts, and those of lists.
const Builtin* FindValueFilter(std::string_view name);
const Builtin* FindListFilter(std::string_view name);

}  // namespace ovq::jinja
