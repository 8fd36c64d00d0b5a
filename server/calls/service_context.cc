#include "server/calls/service_context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"
#include "server/telemetry/call_summary.h"

namespace ovq::server {
namespace {

constexpr int kWriterThreads = 2;
constexpr int kQuickThreads = 2;
constexpr int kBlockingThreads = 4;
constexpr int kAdminThreads = 2;
constexpr int kBlockingNice = 5;  // tokenizing long texts comes last

constexpr const char* kRequestId = "x-request-id";
constexpr const char* kTraceParent = "traceparent";
constexpr const char* kTraceState = "tracestate";

constexpr SteadyTime::duration kDeadlineEarly = std::chrono::milliseconds(20);

std::string ParseRequestId(const CallContext& context) {
  std::optional<std::string> given = context.Value(kRequestId);
  return given && IsRequestId(*given) ? *std::move(given) : NewRequestId();
}

Span StartCallSpan(const CallContext& context) {
  // Several headers of this name make one list.
  return StartSpan(context.Value(kTraceParent), absl::StrJoin(context.Values(kTraceState), ","));
}

}  // namespace

ServiceContext::ServiceContext(engine::Engine& engine, ModelDescription description,
                               Metrics& metrics, CallLog log, const TenantRegistry* tenants)
    : engine(engine),
      description(std::move(description)),
      metrics(metrics),
      log(log),
      auth(tenants, metrics),
      constraints(engine.options().constraint_memory_bytes, metrics),
      writers(*engine.options().host_time, kWriterThreads),
      quick(*engine.options().host_time, kQuickThreads),
      blocking(*engine.options().host_time, kBlockingThreads, kBlockingNice),
      admin(*engine.options().host_time, kAdminThreads) {}

absl::Status ReserveBytes(ByteHold& hold, size_t bytes) {
  const std::optional<size_t> free = hold.Acquire(bytes);
  if (!free) return absl::OkStatus();
  return engine::WithFacts(
      absl::ResourceExhaustedError(absl::StrCat("request memory: ", bytes, " bytes needed, ", *free,
                                                " of ", hold.budget().total(),
                                                " free for this client (--request-memory)")),
      {.reason = engine::RejectReason::kRequestMemory, .bytes_needed = bytes, .bytes_free = *free});
}

void ServiceContext::Drain() {
  draining_ = true;
  // Held during the callbacks, so that no listener goes away meanwhile.
  absl::MutexLock lock(&mutex_);
  for (const auto& [owner, on_drain] : listeners_) on_drain();
}

void ServiceContext::Count(int calls) {
  absl::MutexLock lock(&calls_mutex_);
  open_calls_ += calls;
}

bool ServiceContext::AwaitCalls(absl::Time deadline) {
  const auto none = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_calls_ == 0; };
  absl::MutexLock lock(&calls_mutex_);
  const bool ended = calls_mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
  if (!ended) time_is_up_ = true;
  return ended;
}

absl::Status ServiceContext::CheckServing() const {
  if (!draining_) return absl::OkStatus();
  return engine::WithFacts(absl::UnavailableError("the server is draining"),
                           {.reason = engine::RejectReason::kDraining});
}

absl::Status ServiceContext::AdmitWork() const {
  absl::Status status = CheckServing();
  if (!status.ok()) engine.config().events.rejected(engine::RejectReason::kDraining);
  return status;
}

void ServiceContext::OnDrain(const void* owner, std::function<void()> on_drain) {
  absl::MutexLock lock(&mutex_);
  listeners_.erase(owner);
  if (on_drain) listeners_.emplace(owner, std::move(on_drain));
}

CallRecord::CallRecord(ServiceContext& services, const char* method, const CallContext& context,
                       std::unique_ptr<ByteHold> memory, Shown shown)
    : open_(services),
      method_(method),
      shown_(shown),
      context_(context),
      request_id_(ParseRequestId(context)),
      span_(StartCallSpan(context)),
      memory_(memory != nullptr ? std::move(memory)
                                : std::make_unique<ByteHold>(
                                      services.engine.options().request_memory, context.client())) {
  caller_.client = context.client();
  Log& log = services.log.log;
  if (shown_ == Shown::kNo || services.log.requests != LogRequests::kAll) return;
  if (!log.enabled(LogLevel::kDebug)) return;
  LogFields fields = {{"method", method_}};
  for (LogField& field : IdFields()) fields.push_back(std::move(field));
  log.Write(LogLevel::kDebug, LogKind::kCall, "call began", fields);
}

absl::Status CallRecord::Admit(Access access) {
  ASSIGN_OR_RETURN(caller_, services().auth.Authenticate(context_, access));
  summary_.tenant = caller_.tenant;
  return services().engine.ChargeRequest(caller_.tenant);
}

void CallRecord::Begin(WorkQueue& queue, size_t message_bytes,
                       std::function<void(const absl::Status& status)> work) const {
  queue.Begin(
      client(), message_bytes,
      [cancel = cancel_, work = std::move(work)] {
        work(cancel->cancelled() ? absl::CancelledError("cancelled by the client")
                                 : absl::OkStatus());
      },
      cancel_);
}

void CallRecord::SetCaller(engine::CallRequest& request) const {
  request.tenant = caller_.tenant;
  request.client = caller_.client;
  request.deadline = context_.deadline();
}

LogFields CallRecord::IdFields() const {
  LogFields fields = {
      {"request_id", request_id_}, {"trace_id", span_.trace_id}, {"span_id", span_.span_id}};
  if (!span_.parent_id.empty()) fields.emplace_back("parent_id", span_.parent_id);
  fields.emplace_back("sampled", span_.sampled);
  fields.emplace_back("peer", context_.peer());
  return fields;
}

absl::Status CallRecord::Seen(const absl::Status& status) const {
  if (!context_.cancelled()) return status;
  if (services().time_is_up()) return absl::UnavailableError("the server is shutting down");
  // A client's own deadline passes a little before the one that it sent: that travels, and gRPC
  // rounds it up to three digits.
  const SteadyTime::duration early = std::max(kDeadlineEarly, (context_.deadline() - start_) / 100);
  const bool late = std::chrono::steady_clock::now() >= context_.deadline() - early;
  if (context_.deadline() != kNever && late)
    return absl::DeadlineExceededError("deadline exceeded");
  return absl::CancelledError("cancelled by the client");
}

void CallRecord::LogEnd(const CallSummary& summary, std::optional<int64_t> turn,
                        const absl::Status& status, SteadyTime start) const {
  const LogRequests wanted = services().log.requests;
  if (wanted == LogRequests::kNone || (wanted == LogRequests::kErrors && status.ok())) return;
  const LogLevel level = CallLogLevel(status.code(), services().draining());
  if (!services().log.log.enabled(level)) return;
  LogFields fields = {{"method", method_}, {"code", absl::StatusCodeToString(status.code())}};
  if (!status.ok()) fields.emplace_back("error", engine::LogText(status));
  if (const auto reason = engine::GetErrorFacts(status).reason) {
    fields.emplace_back("reason", engine::RejectReasonName(*reason));
  }
  if (turn) fields.emplace_back("turn", *turn);
  summary.AppendTo(fields);
  const absl::Duration duration = absl::FromChrono(std::chrono::steady_clock::now() - start);
  fields.emplace_back("duration_ms", Milliseconds(duration));
  for (LogField& field : IdFields()) fields.push_back(std::move(field));
  services().log.log.Write(level, turn ? LogKind::kTurn : LogKind::kCall,
                           turn ? "turn ended" : "call ended", fields);
}

void CallRecord::TraceEnd(const CallSummary& summary, std::optional<int64_t> turn,
                          const absl::Status& status, SteadyTime start) const {
  if (services().log.traces == nullptr) return;
  const absl::Time end = absl::Now();
  TraceCall({.method = method_,
             .http = context_.kind() == std::string_view("header"),
             .span = span_,
             .request_id = request_id_,
             .summary = summary,
             .turn = turn,
             .status = status,
             .start = end - absl::FromChrono(std::chrono::steady_clock::now() - start),
             .end = end},
            *services().log.traces);
}

void CallRecord::EndTurn(const TurnRecord& turn, const absl::Status& status) {
  const CallSummary summary = {summary_.tenant, summary_.session_id, std::nullopt, turn.work};
  const absl::Status seen = Seen(status);
  LogEnd(summary, turn.number, seen, turn.start);
  TraceEnd(summary, turn.number, seen, turn.start);
}

std::vector<std::pair<std::string, std::string>> CallRecord::AnswerHeaders() const {
  std::vector<std::pair<std::string, std::string>> headers = {{kRequestId, request_id_},
                                                              {kTraceParent, span_.traceparent()}};
  if (!span_.state.empty()) headers.emplace_back(kTraceState, span_.state);
  return headers;
}

void CallRecord::End(const absl::Status& seen, size_t answer_bytes) {
  memory_->ShrinkTo(answer_bytes);
  if (shown_ == Shown::kNo) return;
  LogEnd(summary_, std::nullopt, seen, start_);
  TraceEnd(summary_, std::nullopt, seen, start_);
}

}  // namespace ovq::server
