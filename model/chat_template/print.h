// Conversion of values to text, as Python prints them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

std::string ToText(Heap& heap, Value value);  // str()
std::string ToRepr(Heap& heap, Value value);  // repr()
std::string FloatText(double value);          // the shortest text that parses to the same number

struct JsonStyle {
  std::optional<std::string> indent;  // indentation of one level; empty: everything on one line
  std::string_view item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false, sort_keys = false;
};
// json.dumps().
std::string ToJson(Heap& heap, Value value, const JsonStyle& style);

// Texts charged to the heap before they are made.
std::string Joined(Heap& heap, const std::vector<Value>& parts, std::string_view separator);
std::string Replaced(Heap& heap, std::string_view text, std::string_view what, std::string_view by,
                     size_t max_count);

// format % values: a tuple, a dict for %(name)s, or a single value.
Value FormatPercent(Heap& heap, Value format, Value values);
// format.format(...): args[0] is the format, behind it are positional and named arguments.
Value FormatBraces(Heap& heap, const Args& args);

}  // namespace ovq::jinja
