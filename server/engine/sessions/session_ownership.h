// Moves sessions between the servers that share a session folder.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/disk/session_folder.h"
#include "server/engine/sessions/session_core.h"
#include "server/engine/sessions/session_removal.h"

namespace ovq::engine {

// Engine thread only, except for MayBeElsewhere.
class SessionOwnership {
 public:
  SessionOwnership(SessionCore& core, SessionRemoval& removal);
  ~SessionOwnership();

  // True if the session is not here but may be in the folder. Any thread; does not block.
  bool MayBeElsewhere(const std::string& id) const;
  // Brings a session here that may be in the folder, from another server if one has it. OK as well
  // if there is no such session. Errors are those of FolderOwnership::Acquire.
  void Acquire(const std::string& id, const std::optional<std::string>& tenant,
               StatusCallback then);
  // Registers a session found in the folder. FailedPrecondition if it does not fit this server; its
  // files then stay as they are.
  absl::Status Register(disk::FoundSession found);

 private:
  absl::Status RegisterAcquired(absl::StatusOr<disk::FoundSession> found,
                                const std::optional<std::string>& tenant, SteadyTime called);
  void AnswerTransferRequest(const std::string& id);  // another server wants the session

  SessionCore& core_;
  SessionRemoval& removal_;
};

}  // namespace ovq::engine
