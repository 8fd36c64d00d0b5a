// Which server owns each session of a folder: sessions found at the start, and their transfer from
// one server to another.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/disk/session_files.h"
#include "server/disk/session_locks.h"
#include "server/disk/transfer_requests.h"

namespace ovq::disk {

struct RecoveredSessions {
  std::vector<FoundSession> sessions;  // ordered by id
  std::vector<std::string> damaged;    // why sessions were moved to damaged/, one text each
  size_t elsewhere = 0;                // number of sessions that other servers own
};

// Thread-safe. Callbacks run on a thread of its own.
class FolderOwnership {
 public:
  using Done = std::function<void(absl::StatusOr<FoundSession>)>;

  // timeout: time for another server to release a session. damaged: is told why a session was moved
  // to damaged/.
  FolderOwnership(const SessionFiles& files, SessionLocks& locks,
                  std::unique_ptr<TransferRequests> requests, absl::Duration timeout,
                  std::function<void(const absl::Status&)> damaged);
  ~FolderOwnership();  // answers pending calls first

  // Call once, before anything else: acquires the sessions that no server owns, moves damaged ones
  // to damaged/ and deletes files that belong to no session.
  absl::StatusOr<RecoveredSessions> Recover();
  // Acquires a session, asking the server that owns it, if any, to release it. Errors: NotFound;
  // FailedPrecondition if the session is in use, here or there; Unavailable if the other server
  // does not answer; DataLoss if the session is damaged and was moved to damaged/. All name the
  // session.
  void Acquire(const std::string& id, Done done);
  // Sets the function that is called when another server asks for a session of this one. Answer
  // with Release or Decline; without an answer the other server asks again.
  void SetListener(std::function<void(const std::string& id)> asked);
  void Release(const std::string& id);  // requires that no operation on the session is pending
  void Decline(const std::string& id);  // the session is in use
  // Moves the session's files to damaged/ and releases its lock: no server owns it then.
  void Quarantine(const std::string& id);

 private:
  // A pending Acquire.
  struct Acquisition {
    std::string id;
    std::chrono::steady_clock::time_point begin;
    Done done;
    std::chrono::steady_clock::time_point asked = {};  // when another server was last asked
  };

  // Errors: NotFound; AlreadyExists and Unavailable as from SessionLocks; after any other error the
  // session is in damaged/.
  absl::StatusOr<FoundSession> TryAcquire(const std::string& id);
  absl::Status RemoveLeftovers(const std::vector<std::string>& names,
                               const std::set<std::string>& taken,
                               const std::set<std::string>& needed);
  void TransferLoop();
  bool TryFinish(Acquisition& call, bool ending);  // true if `call` was completed

  const SessionFiles& files_;
  SessionLocks& locks_;
  const std::unique_ptr<TransferRequests> requests_;
  const std::chrono::nanoseconds timeout_;
  const std::function<void(const absl::Status&)> damaged_;

  std::mutex mutex_;  // guards the members below
  bool ending_ = false;
  std::vector<Acquisition> acquisitions_;
  std::function<void(const std::string&)> listener_;

  std::thread thread_;
};

}  // namespace ovq::disk
