// Locks that say which of the servers on a shared session folder owns a session.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/disk/durable_files.h"

namespace ovq::disk {

// Kernel locks (fcntl, F_OFD_SETLK) on bytes of files in the folder: the locks of a server that
// ends are released at once, however it ends. Thread-safe.
class SessionLocks {
 public:
  // Creates the folder if it is missing. Errors name the path.
  static absl::StatusOr<std::unique_ptr<SessionLocks>> Open(const std::string& folder);

  // Lock returns AlreadyExists if this object holds the lock, Unavailable if another one does, in
  // this process or another.
  absl::Status Lock(const std::string& id);
  void Unlock(const std::string& id);
  bool Holds(const std::string& id);  // true if this object holds the lock
  size_t size();                      // number of locks that this object holds

 private:
  explicit SessionLocks(std::string folder) : folder_(std::move(folder)) {}

  const std::string folder_;
  std::mutex mutex_;  // guards the members below
  std::vector<OpenFile> files_;
  std::unordered_set<std::string> locked_;
};

}  // namespace ovq::disk
