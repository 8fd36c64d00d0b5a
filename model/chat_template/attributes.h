// Attribute and item access, by the rules of Jinja's sandbox.
#pragma once

#include <string_view>

#include "model/chat_template/heap.h"

namespace ovq::jinja {

// value.name: the attribute, else the item of that name.
Value Attribute(Heap& heap, Value value, std::string_view name);
// value[index]: the item, else the attribute of that name.
Value Item(Heap& heap, Value value, Value index);

}  // namespace ovq::jinja
