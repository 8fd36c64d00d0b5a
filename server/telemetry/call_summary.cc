#include "server/telemetry/call_summary.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/common/session.h"

namespace ovq::server {
namespace {

// Spans of the engine's phases, placed backwards from the end: decoding comes last.
void ExportParts(const FinishedSpan& whole, const WorkSummary& work, TraceExporter& traces) {
  absl::Time end = whole.end;
  for (const auto& [name, time] :
       {std::pair("decode", work.decode_time), std::pair("prefill", work.prefill_time),
        std::pair("queue", work.queue_time)}) {
    if (!time) continue;
    const absl::Time start = std::max(whole.start, end - *time);
    traces.Add({.trace_id = whole.trace_id,
                .span_id = NewSpanId(),
                .parent_id = whole.span_id,
                .state = whole.state,
                .name = name,
                .start = start,
                .end = end});
    end = start;
  }
}

}  // namespace

void WorkSummary::Add(const engine::StreamEvent& event) {
  if (event.started) {
    prompt_tokens = prompt_tokens.value_or(0) + event.started->prompt_tokens;
    generated_tokens = generated_tokens.value_or(0);
  }
  if (event.chunk) {
    generated_tokens =
        generated_tokens.value_or(0) + static_cast<int64_t>(event.chunk->token_ids.size());
  }
  if (!event.finished) return;
  const engine::Usage& usage = event.finished->usage;
  finish = event.finished->reason;
  queue_time = usage.queue_time;
  prefill_time = usage.prefill_time;
  if (usage.generated_tokens > 0) decode_time = usage.decode_time;
  if (usage.generated_tokens > 0) first_token = usage.queue_time + usage.prefill_time;
}

void WorkSummary::AppendTo(LogFields& fields) const {
  if (prompt_tokens) fields.emplace_back("prompt_tokens", *prompt_tokens);
  if (generated_tokens) fields.emplace_back("generated_tokens", *generated_tokens);
  if (queue_time) fields.emplace_back("queue_ms", Milliseconds(*queue_time));
  if (first_token) fields.emplace_back("ttft_ms", Milliseconds(*first_token));
  if (finish) fields.emplace_back("finish_reason", engine::FinishReasonName(*finish));
}

void CallSummary::SetSession(std::string_view id) {
  session_id = engine::IsSessionId(id) ? std::string(id) : "";
}

void CallSummary::AppendTo(LogFields& fields) const {
  if (!tenant.empty()) fields.emplace_back("tenant", tenant);
  if (!session_id.empty()) fields.emplace_back("session_id", session_id);
  if (turns) fields.emplace_back("turns", *turns);
  work.AppendTo(fields);
}

LogLevel CallLogLevel(absl::StatusCode code, bool draining) {
  switch (code) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kDeadlineExceeded:
      return LogLevel::kWarning;
    case absl::StatusCode::kUnavailable:
      return draining ? LogLevel::kInfo : LogLevel::kWarning;
    default:
      return LogLevel::kInfo;
  }
}

void TraceCall(const EndedCall& call, TraceExporter& traces) {
  if (!call.span.parent_id.empty() && !call.span.sampled) return;
  FinishedSpan span = {
      .trace_id = call.span.trace_id,
      .span_id = call.turn ? NewSpanId() : call.span.span_id,
      .parent_id = call.turn ? call.span.span_id : call.span.parent_id,
      .state = call.span.state,
      .name = call.turn ? "turn" : absl::StrCat(call.http ? "HTTP " : "ovq.v1/", call.method),
      .kind = call.turn ? FinishedSpan::Kind::kInternal : FinishedSpan::Kind::kServer,
      .start = call.start,
      .end = call.end,
      .status = call.status};
  const auto add = [&span](const char* key, auto value) {
    if (value) span.attributes.emplace_back(key, *value);
  };
  const auto text = [](const std::string& value) {
    return value.empty() ? std::nullopt : std::optional(value);
  };
  const WorkSummary& work = call.summary.work;
  if (call.http) {
    span.attributes.emplace_back("http.route", call.method);
  } else {
    span.attributes.emplace_back("rpc.system", "grpc");
    span.attributes.emplace_back("rpc.method", call.method);
    span.attributes.emplace_back("rpc.grpc.status_code", static_cast<int64_t>(call.status.code()));
  }
  span.attributes.emplace_back("ovq.request_id", call.request_id);
  add("ovq.tenant", text(call.summary.tenant));
  add("ovq.session_id", text(call.summary.session_id));
  add("ovq.turn", call.turn);
  add("ovq.prompt_tokens", work.prompt_tokens);
  add("ovq.generated_tokens", work.generated_tokens);
  const bool parts = call.turn || !call.summary.turns;
  traces.Add(span);
  if (parts) ExportParts(span, work, traces);
}

double Milliseconds(absl::Duration time) {
  return std::round(absl::ToDoubleMicroseconds(time)) / 1000;
}

}  // namespace ovq::server
