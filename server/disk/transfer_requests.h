// What servers on one session folder ask of each other: that a session be let go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ovq {

// A file, named by the session, is an ask: whoever has the session lets it go, or refuses by
// removing the file.
class TransferRequests {
 public:
  // Makes the folder if it is missing. Errors name the path.
  static absl::StatusOr<std::unique_ptr<TransferRequests>> Open(const std::string& folder);
  ~TransferRequests();

  // --- any thread ---
  void RequestTransfer(const std::string& id);  // once more, if it has been asked for
  bool IsTransferRequested(const std::string& id) const;
  void Remove(const std::string& id);  // the ask: it is refused, or over
  void Interrupt();

  // One thread: the sessions that were asked for, by this server too; none after the time or
  // Interrupt.
  std::vector<std::string> Wait(absl::Duration timeout);

 private:
  TransferRequests(std::string folder, int events, int wake);
  std::string FilePath(const std::string& id) const;

  const std::string folder_;
  const int events_;  // of inotify
  const int wake_;
};

}  // namespace ovq
