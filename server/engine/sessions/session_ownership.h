// Moves sessions between the servers that share a session folder.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/disk/session_folder.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/session.h"
#include "server/engine/sessions/session_persistence.h"
#include "server/engine/sessions/session_table.h"

namespace ovq::engine {

// Engine thread only, except for MayBeElsewhere.
class SessionOwnership {
 public:
  // Ends sessions whose time is over: one from another server may be such a session.
  using ExpireSessions = std::function<void(SteadyTime now)>;

  SessionOwnership(const EngineConfig& config, Admission& admission, std::shared_ptr<Inbox> inbox,
                   SessionTable& table, SessionPersistence& disk, ExpireSessions expire);
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

  const EngineConfig& config_;
  Admission& admission_;
  const std::shared_ptr<Inbox> inbox_;
  SessionTable& table_;
  SessionPersistence& disk_;
  const ExpireSessions expire_;
};

}  // namespace ovq::engine
