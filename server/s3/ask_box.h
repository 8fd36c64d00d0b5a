// Defines AskBox, by which servers ask each other for sessions.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/s3/s3_client.h"

namespace ovq::s3 {

inline constexpr char kAskPrefix[] = "ask/", kBellPrefix[] = "bell/";

// A server asks by an object ask/OWNER/ID/SERVER with "?", and then changes bell/OWNER. The owner
// reads its bell all the time, which costs a tenth of a list, and lists what it is asked for when
// that has changed. It declines by writing "no" into the object, which whoever asked removes.
// Thread-safe.
class AskBox {
 public:
  AskBox(S3Client& client, std::string server) : client_(client), server_(std::move(server)) {}

  // For whoever asks.
  absl::Status Ask(const std::string& owner, const std::string& id);
  absl::StatusOr<bool> WasDeclined(const std::string& owner, const std::string& id);
  void Withdraw(const std::string& owner, const std::string& id);

  // For the owner. Returns ids that others ask for, also those that were returned before and have
  // no answer yet. One thread.
  absl::StatusOr<std::vector<std::string>> Listen();
  void Decline(const std::string& id, SteadyTime until);
  // The session is not here: whoever asks finds where it is.
  void Drop(const std::string& id);
  void End();  // removes the bell

 private:
  struct Asked {
    std::string key, etag;
  };
  std::vector<Asked> Forget(const std::string& id);

  S3Client& client_;
  const std::string server_;
  std::string bell_ = {};  // its ETag

  std::mutex mutex_;                                 // guards asked_
  std::map<std::string, std::vector<Asked>> asked_;  // without an answer, by id
};

}  // namespace ovq::s3
