// The global functions of templates.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The function of that name; null if there is none.
const Builtin* FindGlobal(std::string_view name);

}  // namespace ovq::jinja
