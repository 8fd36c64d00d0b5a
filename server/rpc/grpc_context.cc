#include "server/rpc/grpc_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/engine/error_facts.h"
#include "server/rpc/grpc_codec.h"

namespace ovq {
namespace {

constexpr int kWriterThreads = 2;
constexpr int kQuickThreads = 2;
constexpr int kBlockingThreads = 4;
constexpr int kAdminThreads = 2;
constexpr int kBlockingNice = 5;  // the tokenizing of long texts comes after all else

constexpr const char* kRequestId = "x-request-id";
constexpr const char* kTraceParent = "traceparent";
constexpr const char* kTraceState = "tracestate";

constexpr SteadyTime::duration kDeadlineEarly = std::chrono::milliseconds(20);

std::string RequestIdOf(const grpc::CallbackServerContext& context) {
  std::optional<std::string> given = MetadataValue(context, kRequestId);
  return given && IsRequestId(*given) ? *std::move(given) : NewRequestId();
}

Span SpanOf(const grpc::CallbackServerContext& context) {
  // One list may come as several headers.
  const auto [begin, end] = context.client_metadata().equal_range(kTraceState);
  const std::string state = absl::StrJoin(begin, end, ",", [](std::string* out, const auto& entry) {
    out->append(entry.second.data(), entry.second.size());
  });
  return StartSpan(MetadataValue(context, kTraceParent), state);
}

}  // namespace

ServiceContext::ServiceContext(Engine& engine, ModelDescription description, Metrics& metrics,
                               CallLog log, const TenantRegistry* tenants)
    : engine(engine),
      description(std::move(description)),
      metrics(metrics),
      log(log),
      auth(tenants, metrics),
      writers(kWriterThreads),
      quick(kQuickThreads),
      blocking(kBlockingThreads, kBlockingNice),
      admin(kAdminThreads) {}

absl::StatusOr<Caller> ServiceContext::Admit(const grpc::CallbackServerContext& context,
                                             Access access) const {
  absl::StatusOr<Caller> caller = auth.Authenticate(context, access);
  if (!caller.ok()) return caller;
  if (absl::Status status = engine.ChargeRequest(caller->tenant); !status.ok()) return status;
  return caller;
}

void ServiceContext::Drain() {
  draining_ = true;
  // Held during the calls, so that no listener goes away under them.
  absl::MutexLock lock(&mutex_);
  for (const auto& [owner, on_drain] : listeners_) on_drain();
}

void ServiceContext::Count(int calls) {
  absl::MutexLock lock(&calls_mutex_);
  open_calls_ += calls;
}

void ServiceContext::AwaitCalls(absl::Time deadline) {
  const auto none = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_calls_ == 0; };
  absl::MutexLock lock(&calls_mutex_);
  calls_mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

absl::Status ServiceContext::CheckServing() const {
  if (!draining_) return absl::OkStatus();
  return WithFacts(absl::UnavailableError("the server is draining"),
                   {.reason = RejectReason::kDraining});
}

void ServiceContext::OnDrain(const void* owner, std::function<void()> on_drain) {
  absl::MutexLock lock(&mutex_);
  listeners_.erase(owner);
  if (on_drain) listeners_.emplace(owner, std::move(on_drain));
}

CallRecord::CallRecord(ServiceContext& services, const char* method,
                       grpc::CallbackServerContext* context)
    : services_(services),
      method_(method),
      context_(context),
      deadline_(Clock().ToSteady(absl::FromChrono(context->deadline()))),
      request_id_(RequestIdOf(*context)),
      span_(SpanOf(*context)) {
  services_.Count(1);
  Log& log = services_.log.log;
  if (!log.enabled(LogLevel::kDebug) || services_.log.requests != LogRequests::kAll) return;
  LogFields fields = {{"method", method_}};
  for (LogField& field : IdFields()) fields.push_back(std::move(field));
  log.Write(LogLevel::kDebug, LogKind::kCall, "call began", fields);
}

LogFields CallRecord::IdFields() const {
  LogFields fields = {
      {"request_id", request_id_}, {"trace_id", span_.trace_id}, {"span_id", span_.span_id}};
  if (!span_.parent_id.empty()) fields.emplace_back("parent_id", span_.parent_id);
  fields.emplace_back("sampled", span_.sampled);
  fields.emplace_back("peer", context_->peer());
  return fields;
}

absl::Status CallRecord::Seen(const absl::Status& status) const {
  if (!context_->IsCancelled()) return status;
  // What the client sees of a call that it gave up.
  // A client's own deadline passes a little before the one that it sent: by the time on the way,
  // and because gRPC rounds up to three digits.
  const SteadyTime::duration early = std::max(kDeadlineEarly, (deadline_ - start_) / 100);
  const bool late = std::chrono::steady_clock::now() >= deadline_ - early;
  if (deadline_ != kNever && late) return absl::DeadlineExceededError("deadline exceeded");
  return absl::CancelledError("cancelled by the client");
}

void CallRecord::LogEnd(const CallSummary& summary, std::optional<int64_t> turn,
                        const absl::Status& status, SteadyTime start) const {
  const LogRequests wanted = services_.log.requests;
  if (wanted == LogRequests::kNone || (wanted == LogRequests::kErrors && status.ok())) return;
  const LogLevel level = LevelOf(status.code(), services_.draining());
  if (!services_.log.log.enabled(level)) return;
  LogFields fields = {{"method", method_}, {"code", absl::StatusCodeToString(status.code())}};
  if (!status.ok()) fields.emplace_back("error", LogText(status));
  if (const auto reason = FactsOf(status).reason) {
    fields.emplace_back("reason", RejectReasonName(*reason));
  }
  if (turn) fields.emplace_back("turn", *turn);
  summary.AppendTo(fields);
  const absl::Duration duration = absl::FromChrono(std::chrono::steady_clock::now() - start);
  fields.emplace_back("duration_ms", Milliseconds(duration));
  for (LogField& field : IdFields()) fields.push_back(std::move(field));
  services_.log.log.Write(level, turn ? LogKind::kTurn : LogKind::kCall,
                          turn ? "turn ended" : "call ended", fields);
}

void CallRecord::EndTurn(const TurnRecord& turn, const absl::Status& status) {
  LogEnd({summary_.tenant, summary_.session_id, std::nullopt, turn.work}, turn.number, Seen(status),
         turn.start);
}

grpc::Status CallRecord::End(const absl::Status& status) {
  const absl::Status seen = Seen(status);
  if (const std::optional<absl::Duration> wait = FactsOf(seen).retry_after) {
    context_->AddTrailingMetadata("retry-after-ms", absl::StrCat(absl::ToInt64Milliseconds(*wait)));
  }
  context_->AddTrailingMetadata(kRequestId, request_id_);
  context_->AddTrailingMetadata(kTraceParent, span_.traceparent());
  if (!span_.state.empty()) context_->AddTrailingMetadata(kTraceState, span_.state);
  services_.metrics.CallFinished(method_, seen.code(),
                                 absl::FromChrono(std::chrono::steady_clock::now() - start_));
  LogEnd(summary_, std::nullopt, seen, start_);
  return ToGrpcStatus(seen);
}

}  // namespace ovq
