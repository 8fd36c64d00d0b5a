// Operators on values, by Python's rules.
#pragma once

#include <string_view>
#include <vector>

#include "model/chat_template/value.h"

namespace ovq::jinja {

bool Equal(Heap& heap, Value a, Value b);
// Whether a < b. kType if Python does not order them.
bool Less(Heap& heap, Value a, Value b);
// Comparison by operator name: == != < <= > >= in, not in.
bool Compare(Heap& heap, std::string_view name, Value a, Value b);

// Arithmetic by operator name: + - * / // % **
Value Binary(Heap& heap, std::string_view name, Value a, Value b);
Value Unary(Heap& heap, std::string_view name, Value value);

// value.name by the rules of Jinja's sandbox: the attribute, else the item of that name.
Value Attribute(Heap& heap, Value value, std::string_view name);
// value[index]: the item, else the attribute of that name.
Value Item(Heap& heap, Value value, Value index);
// value[from:to:step], kNone for omitted parts.
Value Slice(Heap& heap, Value value, Value from, Value to, Value step);

// The sequence a for iterates over: items, characters, keys. Exhausts a generator.
std::vector<Value> Items(Heap& heap, Value value);
// Number of characters, items or keys. kType for values without a length.
int64_t Length(Heap& heap, Value value);
// The value as text with & < > ' " escaped, unless it is safe already.
Value Escape(Heap& heap, Value value);

}  // namespace ovq::jinja
