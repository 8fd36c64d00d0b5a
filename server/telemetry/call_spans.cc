#include "server/telemetry/call_spans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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

void ExportCall(const EndedCall& call, TraceExporter& traces) {
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

}  // namespace ovq::server
