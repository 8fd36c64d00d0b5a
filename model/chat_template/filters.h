// The builtin filters: value | filter.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The filter of that name; null if there is none.
const Builtin* FindFilter(std::string_view name);

// Calls the filter. kSyntax if there is none of that name.
Value CallFilter(Context& context, std::string_view name, Args args);

// Filters of values and texts, and filters of lists.
const Builtin* FindValueFilter(std::string_view name);
const Builtin* FindListFilter(std::string_view name);

}  // namespace ovq::jinja
