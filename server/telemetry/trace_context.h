// The identity of a call: its request id, and W3C Trace Context (www.w3.org/TR/trace-context).
// No gRPC here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/text.h"

namespace ovq::server {

inline bool IsRequestId(std::string_view text) { return IsName(text); }
std::string NewRequestId();  // 128 random bits as hexadecimal digits

// The place of one call in a trace.
struct Span {
  std::string trace_id;   // 32 hexadecimal digits
  std::string span_id;    // 16 digits, of this call
  std::string parent_id;  // 16 digits, the caller's; empty if the trace begins here
  bool sampled = false;   // the caller may record its part of the trace
  std::string state;      // the caller's `tracestate`; empty: none

  std::string traceparent() const;  // header value that names this span
};

// A child of the span that the header `traceparent` names. If it names none, the trace begins here
// and `tracestate` is ignored. Unset arguments: no such header, or several.
Span StartSpan(const std::optional<std::string>& traceparent,
               const std::optional<std::string>& tracestate);

}  // namespace ovq::server
