// What dots and brackets find: Jinja's rules inside its sandbox.
#pragma once

#include <string_view>

#include "model/chat_template/heap.h"

namespace ovq::jinja {

// value.name: the attribute, or else the item of that name.
Value Attribute(Heap& heap, Value value, std::string_view name);
// value[index]: the item, or else the attribute of that name.
Value Item(Heap& heap, Value value, Value index);

}  // namespace ovq::jinja
