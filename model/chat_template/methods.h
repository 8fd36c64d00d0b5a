// What a dot finds in a value itself.
#pragma once

#include <string_view>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// The method of that name of str, list, tuple, dict or loop; null if there is none.
const Builtin* FindMethod(Kind kind, std::string_view name);
const Builtin* FindStrMethod(std::string_view name);
// Whether the value has the attribute, but the sandbox keeps it: what changes the value, and
// Python's own.
bool IsUnsafeAttribute(Kind kind, std::string_view name);
// loop.index and the like; kMissing if there is none of that name.
Value LoopAttribute(Heap& heap, const Loop& loop, std::string_view name);

}  // namespace ovq::jinja
