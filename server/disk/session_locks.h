// Which of the servers on one session folder has which session.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq {

// Locks of the system (fcntl, F_OFD_SETLK), on bytes of files in the folder: those of a server that
// ends are free at once, however it ends. Any thread.
class SessionLocks {
 public:
  // Makes the folder if it is missing. Errors name the path.
  static absl::StatusOr<std::unique_ptr<SessionLocks>> Open(const std::string& folder);
  ~SessionLocks();

  // AlreadyExists: it is locked by this; Unavailable: by another one, of this process or not.
  absl::Status Lock(const std::string& id);
  void Unlock(const std::string& id);

 private:
  explicit SessionLocks(std::string folder);

  const std::string folder_;
  std::mutex mutex_;  // guards the rest
  std::vector<int> files_;
  std::unordered_set<std::string> locked_;
};

}  // namespace ovq
