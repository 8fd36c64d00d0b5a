// The engine thread. Its members are split over files along these seams:
//   engine.cc            what other threads call; posting to the thread and waiting for it
//   engine_loop.cc       the thread: inbox, timers, statistics
//   engine_admission.cc  from an accepted job to a running one
//   engine_step.cc       one step: plan, batch, forward, read
//   engine_finish.cc     how jobs end, with memory given back before anyone is told
//   engine_sessions.cc   sessions that outlive a request
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/job.h"
#include "server/engine/scheduler.h"
#include "server/engine/session.h"
#include "server/engine/state_pool.h"

namespace ovq {

// Waits on cv until pred or timeout (which may be infinite); true if pred.
bool WaitFor(std::condition_variable& cv, std::unique_lock<std::mutex>& lock,
             absl::Duration timeout, const std::function<bool()>& pred);

// Wakes the engine thread. Shared with streams, which may outlive the engine.
class Doorbell {
 public:
  void Ring();
  void Wait(absl::Duration timeout);  // returns at once if it rang since the last Wait

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  bool rung_ = false;
};

class Engine::Loop {
 public:
  Loop(const EngineModel& model, const EngineOptions& options,
       std::unique_ptr<DeviceContext> context, EngineEvents events);
  ~Loop();  // nothing may be running: Drain first

  // --- any thread: engine.cc ---
  absl::Status Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream);
  absl::Status SubmitScore(ScoreRequest request, std::function<bool()> cancelled,
                           ScoreCallback done);
  void CreateSession(SessionOptions options, SessionCallback done);
  absl::Status ChargeRequest(const std::string& tenant);
  bool Drain(absl::Duration timeout);
  EngineStats Stats() const;
  // Runs fn on the engine thread between two steps and waits for its result.
  template <class T>
  T Call(std::function<T()> fn) {
    auto result = std::make_shared<std::promise<T>>();
    std::future<T> future = result->get_future();
    Post([result, fn = std::move(fn)] { result->set_value(fn()); });
    return future.get();
  }

  // --- engine thread, through Call: engine_sessions.cc ---
  // A tenant that is not given: any.
  absl::StatusOr<SessionInfo> GetSession(const std::string& id, const std::string& tenant);
  absl::Status DeleteSession(const std::string& id, const std::optional<std::string>& tenant,
                             absl::Time called);
  absl::StatusOr<SessionPage> ListSessions(const std::optional<std::string>& tenant, int page_size,
                                           const std::string& page_token);
  absl::StatusOr<std::vector<std::byte>> CopyState(const std::string& id,
                                                   const std::string& tenant);

 private:
  using Command = std::function<void()>;
  // A sequence that can have rows in a step: a job that prefills, or one of its completions.
  struct Lane {
    Job* job;
    Completion* completion;  // null while prefilling
  };

  // --- any thread ---
  void Post(Command command);
  absl::Status Refuse(RejectReason reason, absl::Status status);
  absl::Status Enqueue(std::shared_ptr<Job> job);
  absl::Status AttachToSession(std::shared_ptr<Job> job);

  // --- any thread: engine_admission.cc ---
  // Charges the job to its tenant and holds that many states and bytes of its share for it.
  std::optional<TenantQuotas::Refusal> ChargeTenant(Job& job, int64_t states, size_t bytes);

  // --- engine_loop.cc ---
  void Run();
  bool RunInbox();  // false when the thread is to end
  void EndDeadJobs(absl::Time now);
  bool EndIfDead(Job& job, absl::Time now);
  absl::Duration NextTimer() const;
  void PublishStats();
  void AbortAll();

  // --- engine_admission.cc ---
  void Admit();
  bool TryAcquire(Job& job);
  void Start(std::shared_ptr<Job> job);
  void StartOnSession(std::shared_ptr<Job> job);
  int live_states() const { return pool_.sessions() + promised_states_; }

  // --- engine_step.cc ---
  bool Step();  // false: nothing could run
  void CollectLanes();
  void FillBatch(std::span<const PlanItem> plan, StepReport& report);
  void CountUpdates(const StateHandle& state, int32_t n_rows, StepReport& report) const;
  void WantResults(Job& job, int32_t n_rows, int64_t first_row);
  void Advance(std::span<const PlanItem> plan);
  void FinishPrefill(Job& job);
  void Fork(Job& job);
  void Draw(Job& job, Completion& completion);
  void ScoreRows(Job& job, int32_t n_rows);
  bool WantsToken(const Job& job) const;
  int32_t WantedLogits(Job& job, int32_t n_rows) const;

  // --- engine_finish.cc ---
  Usage UsageOf(const Job& job, const Completion* completion, absl::Time now) const;
  std::optional<double> DictionaryFill(const Job& job, const Completion* completion) const;
  void FinishCompletion(Job& job, Completion& completion, Finished finished);
  void FinishAbsorbing(Job& job);
  void FinishScore(Job& job);
  void Fail(Job& job, FinishReason reason, const absl::Status& status);
  void ReleaseStates(Job& job);
  void Report(const Job& job, RequestReport report);
  void MarkEnded(Job& job);

  // --- engine_sessions.cc ---
  void OpenSession(SessionOptions options, absl::Time called, SessionCallback done);
  void PublishSession(std::shared_ptr<Session> opened);  // into the table
  void ReleaseSession(Session& session);                 // its memory and its share of the tenant's
  void ExpireSessions(absl::Time now);
  void SessionEvent(const SessionReport& report) const;

  const EngineModel& model_;
  const EngineOptions& options_;
  const EngineEvents events_;
  const StateLayout& layout_;
  const std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();

  mutable std::mutex mutex_;  // guards down to stats_
  std::deque<Command> inbox_;
  SessionTable sessions_;
  int waiting_ = 0;     // jobs posted or queued, not yet admitted
  int unfinished_ = 0;  // jobs accepted and not ended
  bool draining_ = false;
  bool stopping_ = false;
  std::array<int, kRejectReasons> refused_{};  // by RejectReason, not yet told to events_.rejected
  std::condition_variable all_ended_;
  EngineStats stats_;

  // Engine thread only from here.
  std::unique_ptr<DeviceContext> context_;
  StatePool pool_;
  const int session_slots_;
  RandomSource random_;
  std::deque<std::shared_ptr<Job>> queue_;     // waits for memory, first come first served
  std::vector<std::shared_ptr<Job>> running_;  // in order of admission
  size_t published_running_ = 0;               // of them, in stats_
  int promised_states_ = 0;                    // sum of unforked_states
  int64_t next_order_ = 0;
  int64_t steps_ = 0;
  absl::Time next_expiry_ = absl::InfiniteFuture();  // no session expires before

  std::vector<Lane> lanes_;  // of the present step, as is the rest
  std::vector<Candidate> candidates_;
  StepBatch batch_;
  StepReader reader_;

  std::thread thread_;
};

}  // namespace ovq
