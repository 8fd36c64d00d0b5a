// Methods and attributes of values.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The method of that name of str, list, tuple, dict or loop; null if there is none.
const Builtin* FindMethod(Kind kind, std::string_view name);
const Builtin* FindStrMethod(std::string_view name);
// Whether the sandbox forbids an attribute that the value has: those that change the value, and
// Python's internal ones.
bool IsUnsafeAttribute(Kind kind, std::string_view name);
// loop.index etc.; kMissing if there is none of that name.
Value LoopAttribute(Heap& heap, const Loop& loop, std::string_view name);

}  // namespace ovq::jinja
