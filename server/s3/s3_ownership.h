// Which server owns each session of an object store.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/s3/ask_box.h"
#include "server/s3/garbage.h"
#include "server/s3/lease.h"
#include "server/s3/lease_keeper.h"
#include "server/s3/leaving.h"
#include "server/s3/owned_sessions.h"
#include "server/s3/s3_options.h"
#include "server/s3/sweeper.h"
#include "server/store/work_threads.h"

namespace ovq::s3 {

// Owners are servers with a lease. Every write replaces the session's object on condition that it
// is the one that this server has stored or read before. So a server that was paused for longer
// than its lease still owns its sessions until another one acquires them, and nothing depends on
// clocks but how soon that is. A server whose lease was over stores each of its sessions again
// before it counts on them: whoever took it for dead then finds another object than the one that it
// read.
//
// Thread-safe. Callbacks run on threads of its own.
class S3Ownership {
 public:
  using Acquired = store::SessionStore::Acquired;

  S3Ownership(S3Client& client, const S3StoreOptions& options, store::Report report,
              LeaseKeeper::Touch touch);
  ~S3Ownership() { End(); }

  absl::Status Start();  // acquires the lease
  void End();            // answers pending calls of Acquire and gives the lease up

  // These are SessionStore's.
  absl::StatusOr<store::RecoveredSessions> Recover() { return sweeper_.Recover(); }
  void Acquire(const std::string& id, Acquired done);
  void SetListener(store::OwnershipListener listener);
  void Decline(const std::string& id, SteadyTime until) { asks_.Decline(id, until); }
  bool sure() const { return lease_.sure(); }
  void Confirm(store::SessionStore::Done done) { lease_.Confirm(std::move(done)); }

  OwnedSessions& sessions() { return sessions_; }
  Garbage& garbage() { return garbage_; }

  // Stops owning a session in this term. SendLeave is called later, from the thread that writes the
  // session. No Acquire of the session begins before that.
  Leaving BeginLeave(const std::string& id, uint64_t term, Leave how);
  // Writes it. It is tried again later if the object store cannot be reached.
  void SendLeave(Leaving leaving, SteadyTime until);

 private:
  // A pending Acquire. While it is busy a worker has it, otherwise the thread that moves sessions.
  struct Acquisition {
    std::string id;
    SteadyTime begin;
    Acquired done;
    SteadyTime first = {};   // when it was tried first
    SteadyTime next = {};    // when it is tried again
    std::string asked = {};  // the owner that was asked
    SteadyTime asked_at = {};
    bool answered = false;
    std::atomic<bool> busy = false;
  };
  using Acquisitions = std::list<Acquisition>;

  void MoveLoop();
  void TryDue(Acquisitions& calls, bool ending);
  bool AnswerLocally(Acquisition& call, bool ending, bool& wait);
  void Try(Acquisition& call, bool ending);
  absl::Status Ask(Acquisition& call, const std::string& owner, bool ending);
  void Finish(Acquisition& call, absl::StatusOr<store::FoundSession> found);
  // Makes this server the owner of a session of which `stored` was read, and passes it to `tell`;
  // calls for the session wait for that. Aborted: it has changed meanwhile, or somebody else here
  // acquires it. FailedPrecondition: it is of another version. Damaged sessions are quarantined.
  absl::Status Conquer(const std::string& id, absl::StatusOr<StoredObject> stored, SteadyTime until,
                       const Sweeper::Tell& tell);
  absl::StatusOr<store::FoundSession> CheckAndPut(const std::string& id,
                                                  absl::StatusOr<StoredObject> stored,
                                                  SteadyTime until);
  absl::Status PutConquered(const std::string& id, StoredObject stored, SteadyTime until);
  absl::Status Quarantine(const std::string& id, const std::string& etag, const absl::Status& why,
                          SteadyTime until);
  void KeepHouse();
  absl::Status ReleaseStray(const std::string& id);

  // Answers requests of other servers.
  absl::Status ListenOnce();

  S3Client& client_;
  const S3StoreOptions options_;
  const store::Report report_;
  OwnedSessions sessions_;
  Garbage garbage_;
  SeenLeases seen_;
  AskBox asks_;
  std::atomic<bool> housekeeping_ = false;  // a thread does it

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  std::set<std::string> releasing_;        // between BeginLeave and SendLeave
  std::set<std::string> acquiring_;        // from before they are this server's until that is told
  std::map<std::string, Leaving> unsent_;  // by id
  Acquisitions acquisitions_;
  std::function<void(const std::string& id)> asked_;  // the listener's

  store::WorkThreads workers_;
  LeaseKeeper lease_;
  Sweeper sweeper_;
  std::thread move_thread_;
};

}  // namespace ovq::s3
