// What all calls share, whatever they come over: the engine and its surroundings, and the record of
// one call.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
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
#include "server/calls/work_queue.h"
#include "server/engine/engine.h"
#include "server/telemetry/call_summary.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/trace_context.h"
#include "server/telemetry/trace_export.h"

namespace ovq {

// Where the lines about calls go, and which calls have one; where their spans go, if anywhere.
struct CallLog {
  Log& log;
  LogRequests requests = LogRequests::kAll;
  TraceExporter* traces = nullptr;
};

// Any thread. Outlives every call.
class ServiceContext {
 public:
  // tenants: null where no tokens are asked for.
  ServiceContext(Engine& engine, ModelDescription description, Metrics& metrics, CallLog log,
                 const TenantRegistry* tenants = nullptr);

  Engine& engine;
  const ModelDescription description;
  Metrics& metrics;
  const CallLog log;
  const Authenticator auth;
  const absl::Time started = absl::Now();

  WorkQueue writers;   // turns tokens into messages; its work never waits
  WorkQueue quick;     // for calls that cost next to nothing and wait for nobody
  WorkQueue blocking;  // parses, tokenizes, and waits for the engine thread
  WorkQueue admin;     // for the admin service

  // Of a call: what its messages and answers take of EngineOptions::request_memory.
  ByteHold Memory(const CallContext& context) const {
    return {engine.options().request_memory, context.client()};
  }
  // Who calls (Authenticator), charged as one request of its tenant's.
  absl::StatusOr<Caller> Admit(const CallContext& context, Access access = Access::kAny) const;

  // Runs `work`, which asks the engine for this session: at once if the session is here, else on a
  // blocking thread, where it may wait for the engine and for another server (Engine::GetSession).
  void RunWithSession(const std::string& session_id, const std::string& client,
                      std::function<void()> work);

  // After Drain, streams without a running turn end, and calls that bring work are refused.
  void Drain();
  absl::Status CheckServing() const;  // Unavailable while draining
  bool draining() const { return draining_; }
  // Until no call is open, or this time.
  void AwaitCalls(absl::Time deadline);
  // A stream that stays open between its turns must be told when the server drains. on_drain must
  // not block; null ends it, once a call that is running is over.
  void OnDrain(const void* owner, std::function<void()> on_drain);

 private:
  friend class CallRecord;
  void Count(int calls);  // that are open, more or fewer

  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  std::map<const void*, std::function<void()>> listeners_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex calls_mutex_;
  int open_calls_ ABSL_GUARDED_BY(calls_mutex_) = 0;
};

// What a call's messages may take of the host's memory, and what is made of them.
absl::Status ReserveBytes(ByteHold& hold, size_t bytes);  // ResourceExhausted

// One turn of a Chat, for the log; its parts count as one.
struct TurnRecord {
  int64_t number = 0;  // from 1
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  WorkSummary work;
};

// One call: who asks, its time and its line in the log.
class CallRecord {
 public:
  // method: for the log. Takes `x-request-id`, `traceparent` and `tracestate`; what is not valid
  // there is ignored. The context outlives it.
  CallRecord(ServiceContext& services, const char* method, const CallContext& context);
  ~CallRecord() { services_.Count(-1); }
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  ServiceContext& services() const { return services_; }
  const char* method() const { return method_; }
  SteadyTime arrival() const { return start_; }
  absl::Duration age() const { return TimeBetween(start_, std::chrono::steady_clock::now()); }
  SteadyTime deadline() const { return context_.deadline(); }
  // For the line about the call: to be filled until End, never by two threads at a time.
  CallSummary& summary() { return summary_; }

  // The line about a turn that ended before the call, or with it.
  void EndTurn(const TurnRecord& turn, const absl::Status& status);
  // `x-request-id`, `traceparent`, `tracestate`: what the answer says of the call.
  std::vector<std::pair<std::string, std::string>> AnswerHeaders() const;
  // What the caller sees of a call with this status: of one that it gave up, that.
  absl::Status Seen(const absl::Status& status) const;
  // The line about the call. Call once, at the end, not on the engine's thread.
  void End(const absl::Status& seen);

 private:
  LogFields IdFields() const;
  // Of a turn, or the call: at the level that the status has, if such lines are wanted.
  void LogEnd(const CallSummary& summary, std::optional<int64_t> turn, const absl::Status& status,
              SteadyTime start) const;

  void TraceEnd(const CallSummary& summary, std::optional<int64_t> turn, const absl::Status& status,
                SteadyTime start) const;

  ServiceContext& services_;
  const char* const method_;
  const CallContext& context_;
  const SteadyTime start_ = std::chrono::steady_clock::now();
  const std::string request_id_;
  const Span span_;
  CallSummary summary_;
};

}  // namespace ovq
