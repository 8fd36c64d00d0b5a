// Requests between servers that share a session folder: a server asks the owner of a session to
// release it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ovq::disk {

// A request is a file named after the session. The owner releases the session, or declines by
// removing the file.
class TransferRequests {
 public:
  // Creates the folder if it is missing. Errors name the path.
  static absl::StatusOr<std::unique_ptr<TransferRequests>> Open(const std::string& folder);
  ~TransferRequests();

  // --- Any thread ---
  void RequestTransfer(const std::string& id);  // announces again if it was requested already
  bool IsTransferRequested(const std::string& id) const;
  void Remove(const std::string& id);  // ends the request: it is declined or over
  void Interrupt();

  // Called on one thread only. Waits for requests, this server's own included, and returns their
  // sessions; returns none after the timeout or Interrupt.
  std::vector<std::string> Wait(absl::Duration timeout);

 private:
  TransferRequests(std::string folder, int events, int wake);
  std::string FilePath(const std::string& id) const;

  const std::string folder_;
  const int events_;  // inotify descriptor
  const int wake_;
};

}  // namespace ovq::disk
