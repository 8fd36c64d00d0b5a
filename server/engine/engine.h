// What other threads may ask of the engine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/engine_config.h"
#include "server/engine/request.h"

namespace ovq {

class EngineLoop;
struct Job;

// Any thread but the engine's own. Callbacks, of streams too, run on the engine thread, must not
// block and must not call back into the engine, Submit excepted.
class Engine {
 public:
  // The loop outlives it.
  explicit Engine(EngineLoop& loop) : loop_(loop) {}

  // Validates, queues and returns at once. Errors come back here (InvalidArgument,
  // ResourceExhausted, NotFound, FailedPrecondition, Unavailable) or, found later, through the
  // stream's status. The answer: one Started, TokenChunks, one Finished per completion.
  absl::Status Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream);

  // cancel may be null.
  absl::Status SubmitScore(ScoreRequest request, std::shared_ptr<CancelSignal> cancel,
                           ScoreCallback done);

  void CreateSession(SessionOptions options, SessionCallback done);
  // A tenant that is not given: any, for who may see every tenant's. A session of another tenant is
  // NotFound. Deleting blocks for at most one step, and cancels the session's run; the others tell
  // at once what was true at the last step boundary.
  absl::Status DeleteSession(const std::string& id, const std::optional<std::string>& tenant);
  absl::StatusOr<SessionInfo> GetSession(const std::string& id, const std::string& tenant) const;
  absl::StatusOr<SessionPage> ListSessions(const std::optional<std::string>& tenant, int page_size,
                                           const std::string& page_token) const;

  // Of the tenant's requests per second, for work that the engine does not do.
  absl::Status ChargeRequest(const std::string& tenant);
  TenantQuotas& quotas() { return *options().quotas; }

  EngineStats Stats() const;  // of the last step boundary
  const EngineOptions& options() const;
  const EngineModel& model() const;

  // Refuses new work (Unavailable), lets running requests finish until `timeout`, then ends the
  // rest with Unavailable. Returns when nothing runs. True if all finished by themselves.
  bool Drain(absl::Duration timeout);

  // The session's live state bytes (StatePool::CopyOut), for tests and snapshots; blocks for at
  // most one step. FailedPrecondition if busy.
  absl::StatusOr<std::vector<std::byte>> CopyState(const std::string& id,
                                                   const std::string& tenant);

 private:
  absl::Status SubmitTurn(std::shared_ptr<Job> job);
  std::function<void()> Wake() const;

  EngineLoop& loop_;
};

}  // namespace ovq
