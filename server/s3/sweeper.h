// Defines Sweeper, which finds sessions in an object store that no server owns.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/s3/garbage.h"
#include "server/s3/lease.h"
#include "server/s3/owned_sessions.h"
#include "server/s3/s3_options.h"
#include "server/s3/session_object.h"
#include "server/store/session_store.h"
#include "server/store/work_threads.h"

namespace ovq::s3 {

// Acquires them, and removes what crashes left, on threads of its own, so that no call waits for
// it.
class Sweeper {
 public:
  using Tell = std::function<void(store::FoundSession)>;
  // Makes this server the owner of a session of which `stored` was read, and passes it to `tell`
  // before a call for it has its answer; quarantines it where nothing could be decoded. The errors
  // are S3Ownership's.
  using Conquer =
      std::function<absl::Status(const std::string& id, absl::StatusOr<StoredObject> stored,
                                 SteadyTime until, const Tell& tell)>;
  // Whether a session is this server's already, or about to become so or to leave it.
  using IsHere = std::function<bool(const std::string& id)>;

  Sweeper(S3Client& client, SeenLeases& seen, Garbage& garbage, const S3StoreOptions& options,
          OwnedSessions& sessions, Conquer conquer, IsHere is_here);
  ~Sweeper() { Stop(); }

  // Acquires all sessions that no living server owns. Fails at the first request that gets no
  // answer.
  absl::StatusOr<store::RecoveredSessions> Recover();
  // Looks for them from now on, and tells whoever listens.
  void Start();
  void SetListener(Tell found);
  void Stop();

 private:
  void Loop();
  // tell: called with each session on several threads. `others` counts and names those that it
  // does not acquire.
  absl::Status AcquireUnowned(const std::vector<std::string>& ids, const Tell& tell,
                              store::RecoveredSessions& others);
  // One pass. Returns when the next one begins.
  SteadyTime Sweep();
  absl::Status FindWhere();

  S3Client& client_;
  SeenLeases& seen_;
  Garbage& garbage_;
  const S3StoreOptions options_;
  OwnedSessions& sessions_;
  const Conquer conquer_;
  const IsHere is_here_;

  // Used by the thread.
  SteadyTime next_orphans_;
  bool abandoned_ = true;             // there may be sessions of servers that ended
  std::vector<std::string> unowned_;  // sessions that a sweep has still to look at

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  Tell found_;

  store::WorkThreads workers_;
  std::thread thread_;
};

}  // namespace ovq::s3
