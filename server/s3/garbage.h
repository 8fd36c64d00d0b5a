// Defines Garbage, which removes objects that no session's object names any more.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/s3/owned_sessions.h"
#include "server/s3/s3_client.h"
#include "server/s3/s3_options.h"

namespace ovq::s3 {

// Thread-safe, except the sweep.
class Garbage {
 public:
  Garbage(S3Client& client, const OwnedSessions& sessions, const S3StoreOptions& options)
      : client_(client),
        sessions_(sessions),
        replaced_life_(options.replaced_life),
        orphan_age_(options.orphan_age) {}

  // Removes objects later, when nobody reads them any more.
  void RemoveLater(std::vector<std::string> keys);
  // Removes those whose time has come. It ends at the first that cannot be removed now: they, and
  // whatever is not removed when the server ends, are orphans.
  void RemoveDue();
  // Removes what it can of those whose time has not come, too, until `until`.
  void RemoveAll(SteadyTime until);
  // Removes objects that crashes left, by their age on the object store's own clock: of sessions
  // that are not there and of those that this server owns, and what servers asked each other.
  // patience: how long each request is tried.
  absl::Status SweepOrphans(absl::Duration patience);
  void Stop() { stopped_ = true; }  // a sweep ends soon

 private:
  absl::Status SweepData(absl::Duration patience);
  // Removes what is left of removed sessions.
  absl::Status SweepRemoved(absl::Duration patience);
  absl::Status SweepOld(const std::string& prefix, absl::Duration patience);
  // Keeps of the keys of one session those that nothing names.
  absl::Status RemoveUnnamed(const std::string& id, const std::vector<std::string>& keys,
                             absl::Duration patience);
  // The oldest objects that were to be removed later than before `now`; none if there are no such.
  std::vector<std::string> NextDue(SteadyTime now);
  bool Remove(const std::vector<std::string>& keys);

  S3Client& client_;
  const OwnedSessions& sessions_;
  const absl::Duration replaced_life_, orphan_age_;

  std::atomic<bool> stopped_ = false;

  std::mutex mutex_;  // guards later_
  std::deque<std::pair<SteadyTime, std::vector<std::string>>> later_;
};

}  // namespace ovq::s3
