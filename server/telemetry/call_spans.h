// A call, or a turn of one, as spans of a trace: itself, and what it spent its time on.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/telemetry/call_summary.h"
#include "server/telemetry/trace_context.h"
#include "server/telemetry/trace_export.h"

namespace ovq {

struct EndedCall {
  const char* method;  // or over HTTP, the route
  bool http = false;
  const Span& span;  // the call's
  const std::string& request_id;
  const CallSummary& summary;
  std::optional<int64_t> turn;  // of a Chat; its span lies under the call's
  absl::Status status;
  absl::Time start, end;
};

// The span itself and, where the engine did something for it, "queue", "prefill" and "decode" under
// it, back to back up to its end. A Chat has them in its turns only. None where the caller's trace
// is not sampled.
void ExportCall(const EndedCall& call, TraceExporter& traces);

}  // namespace ovq
