// What operators do with values: Python's rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/chat_template/heap.h"

namespace ovq::jinja {

bool Equal(Heap& heap, Value a, Value b);
// Whether a < b; kType if Python has no order for them.
bool Less(Heap& heap, Value a, Value b);
// The operator of a comparison: == != < <= > >= in, not in.
bool Compare(Heap& heap, std::string_view name, Value a, Value b);
bool Contains(Heap& heap, Value container, Value item);

// + - * / // % **
Value Binary(Heap& heap, std::string_view name, Value a, Value b);
Value Unary(Heap& heap, std::string_view name, Value value);

// value[from:to:step], each kNone where it was left out.
Value Slice(Heap& heap, Value value, Value from, Value to, Value step);

// What a for goes through: items, characters, keys. A generator is read to its end.
std::vector<Value> Items(Heap& heap, Value value);
// Characters, items or keys; kType for what has no length.
int64_t Length(Heap& heap, Value value);
// The text of the value, & < > ' " escaped unless it is safe already.
Value Escape(Heap& heap, Value value);

}  // namespace ovq::jinja
