// Moves sessions between the servers that share a session store.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/sessions/session_core.h"
#include "server/engine/sessions/session_removal.h"
#include "server/store/session_store.h"

namespace ovq::engine {

// Engine thread only, except for MayBeElsewhere.
class SessionOwnership {
 public:
  SessionOwnership(SessionCore& core, SessionRemoval& removal);
  ~SessionOwnership();

  // True if the session is not here but may be in the store, or is here but may be another server's
  // meanwhile. Any thread; does not block.
  bool MayBeElsewhere(const std::string& id) const;
  // Brings a session here that may be in the store, from another server if one has it. OK as well
  // if there is no such session. Errors are those of SessionStore::Acquire.
  void Acquire(const std::string& id, const std::optional<std::string>& tenant,
               StatusCallback then);
  // Registers a session found in the store. FailedPrecondition if it does not fit this server; its
  // files then stay as they are.
  absl::Status Register(store::FoundSession found);

 private:
  absl::Status RegisterAcquired(absl::StatusOr<store::FoundSession> found,
                                const std::optional<std::string>& tenant, SteadyTime called);
  // Asks the store for a session that is not here, once for all calls that want it.
  void AskStore(const std::string& id, const std::optional<std::string>& tenant,
                StatusCallback then);
  void AnswerTransferRequest(const std::string& id);  // another server wants the session
  // Stores an idle session whose last turn or use the store does not have.
  void StoreIdle(const std::shared_ptr<Session>& session);
  void Lose(const std::string& id);  // another server owns the session now

  SessionCore& core_;
  SessionRemoval& removal_;
  std::map<std::string, std::vector<StatusCallback>> asking_;  // calls that wait for another's
};

}  // namespace ovq::engine
