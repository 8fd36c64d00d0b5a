// The engine: what other threads may ask of it, and the turns of its own thread, which drive its
// parts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/common/device.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/session_image.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/scheduling/executor.h"
#include "server/engine/scheduling/scheduler.h"
#include "server/engine/sessions/sessions.h"

namespace ovq {

// Callbacks, of streams too, run on the engine thread, must not block and must not call back into
// the engine, Submit excepted.
class Engine : private Evictor {
 public:
  // Fills in what the options leave to the engine.
  Engine(EngineConfig config, std::unique_ptr<DeviceContext> context);

  // --- any thread but the engine's own ---

  // Validates, queues and returns at once. Errors come back here (InvalidArgument,
  // ResourceExhausted, NotFound, FailedPrecondition, Unavailable) or, found later, through the
  // stream's status. The answer: one Started, TokenChunks, one Finished per completion.
  absl::Status Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream);

  // cancel may be null.
  absl::Status SubmitScore(ScoreRequest request, std::shared_ptr<CancelSignal> cancel,
                           ScoreCallback done);

  void CreateSession(SessionOptions options, SessionCallback done);
  // Copies an idle session (FailedPrecondition: a call uses it), which then go on independently.
  void ForkSession(ForkOptions options, SessionsCallback done);
  // Takes an idle session back to an earlier position, to the byte, or only says what that takes;
  // cancel may be null. Cancelled or failed, it stays as it was.
  void RewindSession(RewindOptions options, std::shared_ptr<CancelSignal> cancel,
                     RewindCallback done);
  // What an idle session is, as of a step boundary; blocks for at most one step. With `since`
  // (CheckSessionBase) without the state: for EncodeDelta. FailedPrecondition then if the session
  // keeps no tokens, or does not begin with those of `since`.
  absl::StatusOr<SessionImage> ExportSession(const std::string& id, const std::string& tenant,
                                             const std::optional<SessionBase>& since = {});
  // FailedPrecondition unless a session with this image can live here (CheckSessionFits).
  absl::Status CheckImport(const SessionImage& head) const;
  // A session from an image, of which nobody can say that its state is what its tokens make: so
  // they are read again, unless EngineOptions::trust_session_files: then only those that the state
  // has not read, and the caller's thread looks whether kernels may have the state
  // (CheckSessionState). FailedPrecondition without tokens, and as CheckImport has it. memory,
  // slot_cap and prompt of the options are not looked at.
  void ImportSession(SessionImage image, SessionOptions options, SessionCallback done);
  // A tenant that is not given: any, for who may see every tenant's. A session of another tenant is
  // NotFound. Deleting blocks for at most one step, and cancels the session's run; the others tell
  // at once what was true at the last step boundary. Both block longer for a session of the
  // SessionFolder that is not here (SessionFolder::AcquireOwnership, with its errors).
  absl::Status DeleteSession(const std::string& id, const std::optional<std::string>& tenant);
  absl::StatusOr<SessionInfo> GetSession(const std::string& id, const std::string& tenant);
  // True if GetSession of this id may block: the session is not here, and another server of the
  // session folder may have it. Blocks for nothing; any thread.
  bool SessionMayBeElsewhere(const std::string& id) const {
    return sessions_.ownership.MayBeElsewhere(id);
  }
  // Sessions of a SessionFolder (EngineOptions::session_folder), before the first call; says which
  // do not fit here.
  std::vector<std::string> AdoptSessions(std::vector<FoundSession> found);
  absl::StatusOr<SessionPage> ListSessions(const std::optional<std::string>& tenant, int page_size,
                                           const std::string& page_token) const;

  // Of the tenant's requests per second, for every call before anything is done for it.
  absl::Status ChargeRequest(const std::string& tenant) const;
  TenantQuotas& quotas() const { return *config_.options.quotas; }

  EngineStats Stats() const;  // of the last step boundary
  // The turn that the engine is in, if any; blocks for nothing.
  std::optional<IterationInProgress> iteration_in_progress() const { return watch_.Now(); }
  const EngineConfig& config() const { return config_; }
  const EngineOptions& options() const { return config_.options; }
  const EngineModel& model() const { return config_.model; }

  // Refuses new work (Unavailable), lets running requests finish until `timeout`, then ends the
  // rest with Unavailable. Returns when nothing runs. True if all finished by themselves.
  bool Drain(absl::Duration timeout);

  // The session's live state bytes (StatePool::CopyOut), for tests and snapshots; blocks for at
  // most one step. FailedPrecondition if busy.
  absl::StatusOr<std::vector<std::byte>> CopyState(const std::string& id,
                                                   const std::string& tenant);
  void Stop();  // Run returns after what was posted

  // --- engine thread ---

  void Run();  // turns until Stop
  // What was posted, what the time has ended, who is let in, and one step. False: no row could run.
  bool RunIteration();
  absl::Duration TimeToNextEnd() const;  // until a deadline passes or a session expires
  void EndAll(const absl::Status& status);
  SessionParts& sessions() { return sessions_; }

 private:
  static constexpr size_t kFewRequests = 64;
  static constexpr auto kLookEvery = std::chrono::milliseconds(1);
  static constexpr auto kLookAtManyEvery = std::chrono::milliseconds(10);
  static constexpr auto kPublishManyEvery = std::chrono::milliseconds(50);

  bool EvictIdleStates(size_t bytes) override {
    return config_.options.overcommit && sessions_.removal.EvictIdleStates(bytes);
  }
  bool EvictFrom(const std::string& client, bool table, bool running) override {
    return sessions_.removal.EvictFrom(client, table) || (running && scheduler_.EvictFrom(client));
  }
  absl::Status SubmitTurn(std::shared_ptr<Request> request);
  absl::Status Claim(Request& request);  // its session
  // Engine thread: swaps the claimed session's state in and starts the turn.
  void StartTurn(std::shared_ptr<Request> request);
  std::function<void()> Wake() const {
    return [inbox = inbox_] { inbox->Ring(); };
  }
  // To look at a thousand calls takes as long as a small model's step: so it is done when somebody
  // rang, as who cancels does, and now and then for what the time ends and for the statistics.
  bool few_requests() const { return scheduler_.requests().size() <= kFewRequests; }
  void EndWhatIsOver(SteadyTime now);
  bool PublishDue() const {
    return few_requests() || config_.options.clock.steady() >= publish_again_;
  }
  void PublishStats();

  const EngineConfig config_;
  const std::unique_ptr<DeviceContext> context_;
  StatePool pool_;
  IterationWatch watch_;
  RandomSource random_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  Admission admission_;
  SessionParts sessions_;
  Scheduler scheduler_;
  Executor executor_;
  const int session_slots_;
  size_t published_requests_ = 0;  // running ones, in stats_
  SteadyTime publish_again_;       // where there are many
  SteadyTime look_again_ = {};

  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  EngineStats stats_;  // guarded by mutex_
};

// An engine on a thread of its own, which its destruction drains without time.
class EngineThread {
 public:
  EngineThread(EngineModel model, EngineOptions options, std::unique_ptr<DeviceContext> context,
               EngineEvents events)
      : engine_({std::move(model), std::move(options), std::move(events)}, std::move(context)),
        thread_([this] { engine_.Run(); }) {}
  ~EngineThread() {
    engine_.Drain(absl::ZeroDuration());
    engine_.Stop();
    thread_.join();
  }

  Engine& engine() { return engine_; }

 private:
  Engine engine_;
  std::thread thread_;
};

}  // namespace ovq
