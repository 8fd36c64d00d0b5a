// Which call a line is about: the request id, and W3C Trace Context (www.w3.org/TR/trace-context).
// No gRPC here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/text.h"

namespace ovq {

inline bool IsRequestId(std::string_view text) { return IsName(text); }
std::string NewRequestId();  // 128 random bits as hexadecimal digits

// One call's place in a trace.
struct Span {
  std::string trace_id;   // 32 hexadecimal digits
  std::string span_id;    // 16, this call's own
  std::string parent_id;  // 16, the caller's span; empty where the trace begins here
  bool sampled = false;   // as the caller says: it may keep its part of the trace
  std::string state;      // the caller's `tracestate`; empty: none

  std::string traceparent() const;  // names this span
};

// A span under the one that the header `traceparent` names. Where it names none, the trace begins
// here and `tracestate` means nothing. Unset: no such header, or several.
Span StartSpan(const std::optional<std::string>& traceparent,
               const std::optional<std::string>& tracestate);

}  // namespace ovq
