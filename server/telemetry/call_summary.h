// Summary of a call that ended, or of one turn of it, for the log and for spans. No gRPC here.
//
// It never holds a prompt, an answer, a token of either, or a secret.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/common/engine_api.h"
#include "server/telemetry/log.h"
#include "server/telemetry/trace_context.h"
#include "server/telemetry/trace_export.h"

namespace ovq::server {

// The calls that get a line (--log-requests).
enum class LogRequests : uint8_t { kNone, kErrors, kAll };
inline constexpr std::array<const char*, 3> kLogRequests = {"none", "errors", "all"};

// The work of the engine for a call or a turn, as far as it is known.
struct WorkSummary {
  std::optional<int64_t> prompt_tokens, generated_tokens;
  std::optional<absl::Duration> queue_time;                 // of the last engine request
  std::optional<absl::Duration> first_token;                // since that request
  std::optional<absl::Duration> prefill_time, decode_time;  // of the last engine request
  std::optional<engine::FinishReason> finish;               // of the last completion

  void Add(const engine::StreamEvent& event);
  void AppendTo(LogFields& fields) const;
};

struct CallSummary {
  std::string tenant;
  std::string session_id;
  std::optional<int64_t> turns;  // number, for a Chat
  WorkSummary work;

  // Ignores text that is no session id: a caller's text could be anything.
  void SetSession(std::string_view id);
  void AppendTo(LogFields& fields) const;
};

// Warning for faults of the server; information for all else, mistakes of callers included.
LogLevel CallLogLevel(absl::StatusCode code, bool draining);

// A call, or one turn of it, for a trace.
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
void TraceCall(const EndedCall& call, TraceExporter& traces);

double Milliseconds(absl::Duration time);  // rounded to microseconds

}  // namespace ovq::server
