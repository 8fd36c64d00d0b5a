// Python's two ways to put values into a text.
#pragma once

#include "model/chat_template/builtin.h"

namespace ovq::jinja {

// format % values: a tuple of them, a dict for %(name)s, or one.
Value FormatPercent(Heap& heap, Value format, Value values);
// format.format(...), by position and by name.
Value FormatBraces(Heap& heap, Value format, const Args& args);

}  // namespace ovq::jinja
