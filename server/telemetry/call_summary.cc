#include "server/telemetry/call_summary.h"

#include <cmath>

#include "server/engine/common/session.h"

namespace ovq::server {

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

double Milliseconds(absl::Duration time) {
  return std::round(absl::ToDoubleMicroseconds(time)) / 1000;
}

}  // namespace ovq::server
