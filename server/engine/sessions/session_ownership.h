// Moves sessions between the servers that share a session store.
#pragma once

#include <optional>
#include <string>

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

  // True if the session is not here but may be in the store. Any thread; does not block.
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
  void AnswerTransferRequest(const std::string& id);  // another server wants the session
  void Lose(const std::string& id);                   // another server owns the session now

  SessionCore& core_;
  SessionRemoval& removal_;
};

}  // namespace ovq::engine
