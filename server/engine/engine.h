// The engine: its public interface for other threads, and the loop of its own thread, which runs
// admission, the scheduler and the executor.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/machine.h"
#include "kernels/common/device.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/scheduling/executor.h"
#include "server/engine/scheduling/scheduler.h"
#include "server/engine/sessions/session_operations.h"
#include "server/engine/sessions/sessions.h"

namespace ovq::engine {

// Callbacks (those of streams, too) run on the engine thread. They must not block, and must not
// call the engine, except for Submit.
class Engine {
 public:
  // Limits max_slot_cap to what the model's layouts allow, and makes the quotas and the request
  // budget if the options have none.
  Engine(EngineConfig config, std::unique_ptr<kernels::DeviceContext> context);

  // --- any thread but the engine's own ---

  // Validates and queues a request, and returns at once. Errors are returned (InvalidArgument,
  // ResourceExhausted, NotFound, FailedPrecondition, Unavailable) or, if they arise later, become
  // the stream's status. The stream gets one Started, TokenChunks, and one Finished per completion.
  absl::Status Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream);

  // Validates and queues a scoring request, and returns at once. `cancel` may be null.
  absl::Status SubmitScore(ScoreRequest request, std::shared_ptr<CancelSignal> cancel,
                           ScoreCallback done);

  // The operations on sessions.
  SessionOperations& sessions() { return sessions_; }

  // Charges one request to the tenant's requests per second. Every call does this first.
  absl::Status ChargeRequest(const std::string& tenant) const;
  TenantQuotas& quotas() const { return *config_.options.quotas; }

  EngineStats Stats() const;  // at the last iteration boundary
  // The iteration in progress, if any. Never blocks.
  std::optional<IterationInProgress> iteration_in_progress() const { return watch_.Now(); }
  const EngineConfig& config() const { return config_; }
  const EngineOptions& options() const { return config_.options; }
  const EngineModel& model() const { return config_.model; }

  // Refuses new work (Unavailable), lets running requests finish until `timeout`, then ends the
  // rest with Unavailable. Returns when nothing runs: true if all requests finished by themselves.
  bool Drain(absl::Duration timeout);

  void Stop();  // Run returns after the commands posted so far

  // --- engine thread ---

  // Measures what rows cost on this machine, calls begun(), and iterates until Stop.
  void Run(const std::function<void()>& begun = [] {});
  // Runs posted commands, ends requests and sessions whose time is up, admits requests, and runs
  // one batch. Returns false if no sequence had a token to run.
  bool RunIteration();
  absl::Duration TimeToNextEnd() const;  // until a deadline passes or a session expires
  void EndAll(const absl::Status& status);

 private:
  static constexpr size_t kFewRequests = 64;
  static constexpr auto kLookEvery = std::chrono::milliseconds(1);
  static constexpr auto kLookAtManyEvery = std::chrono::milliseconds(10);
  static constexpr auto kPublishManyEvery = std::chrono::milliseconds(50);
  static constexpr auto kSettleEvery = std::chrono::milliseconds(5);
  static constexpr size_t kMostWaits = 8;  // threads of a batch that are looked at

  absl::Status SubmitTurn(std::shared_ptr<Request> request);
  // Claims the session of an accepted turn and starts it, after it has gone back if it rewrites.
  absl::Status PinTurn(const std::shared_ptr<Request>& request);
  // Takes the session back to where the turn's tokens part from its own, then pins it anew.
  void GoBack(const std::shared_ptr<Request>& request, std::shared_ptr<PinnedSession> pin);
  // Checks that the turn may begin on its session, which is idle and locked, and charges it.
  absl::Status BeginTurn(Request& request, Session& session);
  // Scanning a thousand requests takes as long as a small model's iteration. So requests are
  // scanned when the inbox rings (as cancellation makes it do) and now and then for deadlines: less
  // often beyond kFewRequests, where statistics are published at intervals, too.
  bool few_requests() const { return scheduler_.requests().size() <= kFewRequests; }
  void EndWhatIsOver(SteadyTime now);
  bool PublishDue() const {
    return few_requests() || config_.options.clock.steady() >= publish_again_;
  }
  void PublishStats();
  // Makes what clients' calls have taken of the processors into debts, now and then.
  void SettleHostTime(SteadyTime now);

  const EngineConfig config_;
  const std::unique_ptr<kernels::DeviceContext> context_;
  StatePool pool_;
  IterationWatch watch_;
  RandomSource random_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  Admission admission_;
  SessionParts parts_;
  SessionOperations sessions_{parts_};
  Scheduler scheduler_;
  Executor executor_;
  const int session_slots_;
  size_t published_requests_ = 0;  // running requests in stats_
  SteadyTime publish_again_;       // earliest next time with more than kFewRequests
  SteadyTime look_again_ = {}, settle_again_ = {};
  std::deque<ProcessorWait> processor_waits_;  // of the threads that run batches, from Run on

  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  EngineStats stats_;  // guarded by mutex_
};

// An engine and its thread. The destructor ends all requests at once and joins the thread.
class EngineThread {
 public:
  EngineThread(EngineModel model, EngineOptions options,
               std::unique_ptr<kernels::DeviceContext> context, EngineEvents events)
      : engine_({std::move(model), std::move(options), std::move(events)}, std::move(context)),
        thread_([this] { engine_.Run([this] { begun_.set_value(); }); }) {
    begun_.get_future().wait();
  }
  ~EngineThread() {
    engine_.Drain(absl::ZeroDuration());
    engine_.Stop();
    thread_.join();
  }

  Engine& engine() { return engine_; }

 private:
  Engine engine_;
  std::promise<void> begun_;
  std::thread thread_;
};

}  // namespace ovq::engine
