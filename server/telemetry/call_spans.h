// A call, or one turn of it, as spans of a trace: the whole, and the phases of its work.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/telemetry/call_summary.h"
#include "server/telemetry/trace_context.h"
#include "server/telemetry/trace_export.h"

namespace ovq::server {

struct EndedCall {
  const char* method;  // RPC label, or over HTTP the route
  bool http = false;
  const Span& span;  // of the call
  const std::string& request_id;
  const CallSummary& summary;
  std::optional<int64_t> turn;  // of a Chat; its span is a child of the call's
  absl::Status status;
  absl::Time start, end;
};

// Exports the span itself and, if the engine did work for it, its children "queue", "prefill" and
// "decode", back to back up to its end. A Chat has them in its turns only. Exports nothing if the
// caller's trace is not sampled.
void ExportCall(const EndedCall& call, TraceExporter& traces);

}  // namespace ovq::server
