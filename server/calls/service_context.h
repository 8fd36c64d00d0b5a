// Shared by all calls over gRPC and HTTP: the ServiceContext with the engine and the threads, and
// the record of one call.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/access/auth.h"
#include "server/access/call_context.h"
#include "server/calls/constraints.h"
#include "server/calls/work_queue.h"
#include "server/engine/engine.h"
#include "server/telemetry/call_summary.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/trace_context.h"
#include "server/telemetry/trace_export.h"

namespace ovq::server {

// Log and trace export of calls. `traces` may be null.
struct CallLog {
  Log& log;
  LogRequests requests = LogRequests::kAll;
  TraceExporter* traces = nullptr;
};

// Any thread. Outlives every call: the destructor waits for open ones, because a thread of the
// engine may still hold a call whose client has the whole answer.
class ServiceContext {
 public:
  // tenants: null if no tokens are asked for.
  ServiceContext(engine::Engine& engine, ModelDescription description, Metrics& metrics,
                 CallLog log, const TenantRegistry* tenants = nullptr);
  ~ServiceContext() { AwaitCalls(absl::InfiniteFuture()); }

  engine::Engine& engine;
  const ModelDescription description;
  Metrics& metrics;
  const CallLog log;
  const Authenticator auth;
  const absl::Time started = absl::Now();

  ConstraintCache constraints;

  WorkQueue writers;   // turn tokens into messages; never wait
  WorkQueue quick;     // for cheap calls that never wait
  WorkQueue blocking;  // parse, tokenize, and wait for the engine
  WorkQueue admin;     // for the admin service

  // From then on streams without a running turn end, and calls that bring work are refused.
  void Drain();
  absl::Status CheckServing() const;  // Unavailable while draining
  absl::Status AdmitWork() const;     // likewise, for a call that brings work: counts the refusal
  bool draining() const { return draining_; }
  // Waits until no call is open, or until this time: then it returns false, and calls that end
  // later are ended by the server.
  bool AwaitCalls(absl::Time deadline);
  bool time_is_up() const { return time_is_up_; }
  // Registers a callback of a stream that stays open between turns, for the start of a drain. It
  // must not block. Null removes it and waits for a running callback.
  void OnDrain(const void* owner, std::function<void()> on_drain);

 private:
  friend class CallRecord;
  void Count(int calls);  // adds to open_calls_

  std::atomic<bool> draining_{false}, time_is_up_{false};
  absl::Mutex mutex_;
  std::map<const void*, std::function<void()>> listeners_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex calls_mutex_;
  int open_calls_ ABSL_GUARDED_BY(calls_mutex_) = 0;
};

// Takes memory for a call's messages and what is made of them. ResourceExhausted.
absl::Status ReserveBytes(ByteHold& hold, size_t bytes);

// One turn of a Chat with all its parts, for the log.
struct TurnRecord {
  int64_t number = 0;  // from 1
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  WorkSummary work;
};

// The record of one call: its caller, memory, ids, times, and lines in the log.
class CallRecord {
 public:
  // Whether a call has lines in the log and spans. Health checks have none.
  enum class Shown : uint8_t { kNo, kYes };

  // method: the label of the RPC or route. Reads `x-request-id`, `traceparent` and `tracestate`;
  // invalid values are ignored. memory: what the call holds already, or null. The context outlives
  // it.
  CallRecord(ServiceContext& services, const char* method, const CallContext& context,
             std::unique_ptr<ByteHold> memory = nullptr, Shown shown = Shown::kYes);
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  // Identifies the caller (Authenticator) and charges its tenant one request. Before any work for
  // the call.
  absl::Status Admit(Access access = Access::kAny);
  const Caller& caller() const { return caller_; }
  // The key of fair sharing: the caller's, once it is known, before that the connection's.
  const std::string& client() const { return caller_.client; }
  // Gives a request to the engine the call's tenant, client and deadline.
  void SetCaller(engine::CallRequest& request) const;
  ByteHold& memory() { return *memory_; }
  // Set when the client cancels.
  const std::shared_ptr<engine::CancelSignal>& cancel() const { return cancel_; }
  // Runs what begins the call, with a message of so many bytes, on a thread of the queue
  // (WorkQueue::Begin). Its status is Cancelled if the client has given the call up meanwhile: then
  // it has only to be ended.
  void Begin(WorkQueue& queue, size_t message_bytes,
             std::function<void(const absl::Status& status)> work) const;

  ServiceContext& services() const { return open_.services; }
  const CallContext& context() const { return context_; }
  const char* method() const { return method_; }
  SteadyTime arrival() const { return start_; }
  absl::Duration age() const { return TimeBetween(start_, std::chrono::steady_clock::now()); }
  // Filled by the call until End, by one thread at a time.
  CallSummary& summary() { return summary_; }

  // Logs and traces a turn that ended before the call or with it.
  void EndTurn(const TurnRecord& turn, const absl::Status& status);
  // Headers of the answer: `x-request-id`, `traceparent`, `tracestate`.
  std::vector<std::pair<std::string, std::string>> AnswerHeaders() const;
  // The status as the caller sees it: Cancelled or DeadlineExceeded if it gave up, Unavailable if
  // the server did.
  absl::Status Seen(const absl::Status& status) const;
  // Logs and traces the call, if it is shown, and releases its memory but for the bytes of an
  // answer that is still to be sent: a client that has the answer finds its memory free, whoever
  // still holds the call. Call once, at the end, not on the engine's thread.
  void End(const absl::Status& seen, size_t answer_bytes = 0);
  // Gives the memory away, to whoever sends the answer. After End.
  std::unique_ptr<ByteHold> ReleaseMemory() { return std::move(memory_); }

 private:
  LogFields IdFields() const;
  // Logs a turn, or the call, at the level of its status, if the options ask for such lines.
  void LogEnd(const CallSummary& summary, std::optional<int64_t> turn, const absl::Status& status,
              SteadyTime start) const;

  void TraceEnd(const CallSummary& summary, std::optional<int64_t> turn, const absl::Status& status,
                SteadyTime start) const;

  struct OpenCall {
    explicit OpenCall(ServiceContext& services) : services(services) { services.Count(1); }
    ~OpenCall() { services.Count(-1); }
    OpenCall(const OpenCall&) = delete;

    ServiceContext& services;
  };

  const OpenCall open_;  // destroyed last: the context may be gone then
  const char* const method_;
  const Shown shown_;
  const CallContext& context_;
  const SteadyTime start_ = std::chrono::steady_clock::now();
  const std::string request_id_;
  const Span span_;
  CallSummary summary_;
  Caller caller_;
  std::unique_ptr<ByteHold> memory_;
  const std::shared_ptr<engine::CancelSignal> cancel_ = std::make_shared<engine::CancelSignal>();
};

}  // namespace ovq::server
