// The sessions of this server by id: which there are, who uses them, and what callers see of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/checkpoints.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/session.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_texts.h"

namespace ovq::engine {

// Session::info is the published part of a session: callers read it without waiting for the engine
// thread. The rest of a session belongs to the engine thread or, while the session is not busy, to
// the thread that looks at it in Claim.
//
// An absent tenant matches every tenant. The error for another tenant's session is NotFound, with
// the same words as for an unknown id.
class SessionTable {
 public:
  SessionTable(const EngineConfig& config, StatePool& pool, Admission& admission);
  ~SessionTable();  // no session is busy

  // --- any thread ---
  absl::StatusOr<SessionInfo> Get(const std::string& id,
                                  const std::optional<std::string>& tenant) const;
  // Sessions with ids after page_token.
  absl::StatusOr<SessionPage> List(const std::optional<std::string>& tenant, int page_size,
                                   const std::string& page_token) const;
  bool Contains(const std::string& id) const;
  SessionInfo Info(const Session& session) const;  // without the positions for a rewind
  using ClaimCheck = std::function<absl::Status(Session&)>;
  // Makes a session busy, if it is idle (FailedPrecondition) and `check` finds nothing against it.
  // `check` runs with the table locked.
  absl::StatusOr<std::shared_ptr<Session>> Claim(const std::string& id, const std::string& tenant,
                                                 const ClaimCheck& check = {});
  SteadyTime next_expiry() const;  // no session expires earlier
  void AddTo(EngineStats& stats) const;
  // Guards the map, Session::info of sessions in it, turn ends and checkpoints.
  std::unique_lock<std::mutex> Lock() const { return std::unique_lock(mutex_); }

  // --- engine thread ---
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& id,
                                                const std::optional<std::string>& tenant) const;
  // The idle session used least recently among those that `which` accepts; null without any.
  std::shared_ptr<Session> FindLeastRecent(const std::function<bool(const Session&)>& which) const;
  // Callers see the session from now on. Returns its info. used: it was used just now.
  SessionInfo Insert(const std::shared_ptr<Session>& session, bool used);
  // Callers don't see the session any more. It keeps its memory until Release. only_idle: returns
  // false and changes nothing if the session is busy.
  bool Remove(Session& session, bool only_idle = false);
  // Changes a session and publishes the change.
  void Update(Session& session, const std::function<void()>& change);
  // Ends a claim. A session that was deleted meanwhile gives its memory back. used: the session was
  // used just now.
  void EndClaim(Session& session, bool used = true);
  // Takes the idle sessions whose time is over out of the table.
  std::vector<std::shared_ptr<Session>> RemoveExpired(SteadyTime now);
  // Gives back a session's memory and its share of the tenant's quota.
  void Release(Session& session);
  SessionTexts& texts() { return texts_; }
  Checkpoints& checkpoints() { return checkpoints_; }  // under Lock, except for Copy and Make
  // Reports an event of a session whose conversation has `position` tokens. It took the time from
  // `since` to now, or none.
  void ReportEvent(const char* event, int64_t position, std::optional<SteadyTime> since = {},
                   int64_t replayed = 0) const;

 private:
  using Map = std::map<std::string, std::shared_ptr<Session>>;

  // With the mutex held.
  absl::StatusOr<std::shared_ptr<Session>> FindLocked(
      const std::string& id, const std::optional<std::string>& tenant) const;
  void RefreshInfo(Session& session);            // from the state
  void MarkUsed(Session& session);               // now
  void Count(const Session& session, int sign);  // adds to the sums below, or subtracts

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;

  mutable std::mutex mutex_;
  Map by_id_;
  // Sums over by_id_ of the published values.
  int hibernated_ = 0;                                    // sessions whose state is on disk
  int idle_ = 0;                                          // of the others, those not busy
  int64_t tokens_ = 0, live_slots_ = 0, log_tokens_ = 0;  // of all sessions with a state in memory
  SteadyTime next_expiry_ = kNever;
  Checkpoints checkpoints_;  // of sessions in by_id_
  SessionTexts texts_;       // likewise
};

}  // namespace ovq::engine
