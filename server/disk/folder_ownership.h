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
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/disk/durable_files.h"
#include "server/disk/session_files.h"
#include "server/disk/session_locks.h"

namespace ovq::disk {

// Thread-safe. Callbacks run on a thread of its own.
class FolderOwnership {
 public:
  using Done = store::SessionStore::Acquired;

  // Creates the folder's subfolders if they are missing. timeout: time for another server to
  // release a session. failed: is told why a session was moved to damaged/, or left as it is, and
  // which file could not be removed. Errors name a path.
  static absl::StatusOr<std::unique_ptr<FolderOwnership>> Open(
      const std::string& folder, absl::Duration timeout,
      std::function<void(const absl::Status&)> failed);
  ~FolderOwnership();  // answers pending calls first

  // These are SessionStore's, with the folder's files. A damaged session's files go to damaged/,
  // and files that belong to no session are removed. A session whose files cannot be read now, or
  // are of another version, is left to whoever can read them.
  absl::StatusOr<store::RecoveredSessions> Recover();
  void Acquire(const std::string& id, Done done);
  void SetListener(std::function<void(const std::string& id)> asked);
  void Release(const std::string& id) { locks_->Unlock(id); }
  void Decline(const std::string& id);
  void Quarantine(const std::string& id);
  // Aborted for a session that this server does not own; OK for one that is gone.
  absl::Status CheckOwned(const std::string& id) const;
  size_t owned() const { return locks_->size(); }
  // Locks a new session. Errors as from SessionLocks.
  absl::Status Lock(const std::string& id) { return locks_->Lock(id); }

 private:
  // A pending Acquire.
  struct Acquisition {
    std::string id;
    std::chrono::steady_clock::time_point begin;
    Done done;
    std::chrono::steady_clock::time_point asked = {};  // when another server was last asked
  };

  // Errors: NotFound; AlreadyExists and Unavailable as from SessionLocks; DataLoss for a damaged
  // session, which is in damaged/ then. After any other error, such as FailedPrecondition for a
  // journal of another version, the session stays as it is and its lock is free.
  absl::StatusOr<store::FoundSession> TryAcquire(const std::string& id);
  void RemoveLeftovers(const std::vector<std::string>& names, const std::set<std::string>& taken,
                       const std::set<std::string>& needed);
  void TransferLoop();
  bool TryFinish(Acquisition& call, bool ending);  // true if `call` was completed

  // A server asks another to release a session by a file of the session's name in asked/. The owner
  // releases the session, or declines by removing the file.
  std::string RequestPath(const std::string& id) const;
  void Interrupt();  // ends WaitForRequests. Any thread
  // Waits for requests, this server's own included, and returns their sessions; none after the
  // timeout or Interrupt.
  std::vector<std::string> WaitForRequests(absl::Duration timeout);

  FolderOwnership(const std::string& folder, absl::Duration timeout,
                  std::function<void(const absl::Status&)> failed)
      : files_(folder), timeout_(absl::ToChronoNanoseconds(timeout)), failed_(std::move(failed)) {}

  const SessionFiles files_;
  const std::chrono::nanoseconds timeout_;
  const std::function<void(const absl::Status&)> failed_;
  std::unique_ptr<SessionLocks> locks_;
  OpenFile requests_;  // an inotify descriptor
  OpenFile wake_;      // an eventfd

  std::mutex mutex_;  // guards the members below
  bool ending_ = false;
  std::vector<Acquisition> acquisitions_;
  std::function<void(const std::string&)> listener_;

  std::thread thread_;
};

}  // namespace ovq::disk
