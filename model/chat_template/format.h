// Python's two kinds of string formatting.
#pragma once

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// format % values: a tuple, a dict for %(name)s, or a single value.
Value FormatPercent(Heap& heap, Value format, Value values);
// format.format(...), with positional and named arguments.
Value FormatBraces(Heap& heap, Value format, const Args& args);

}  // namespace ovq::jinja
