// Which server owns each session of an object store.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/s3/ask_box.h"
#include "server/s3/garbage.h"
#include "server/s3/lease.h"
#include "server/s3/owned_sessions.h"
#include "server/s3/s3_options.h"
#include "server/store/work_threads.h"

namespace ovq::s3 {

// How a session is given up.
enum class Leave : uint8_t {
  kRelease,
  kQuarantine,
  kRemove,
  kUncreate,  // removes one that may come to be stored later
};
struct Leaving {
  HeldSession held;
  Leave how = Leave::kRelease;
};

// Owners are servers with a lease. Every write replaces the session's object on condition that it
// is the one that this server has stored or read before. So a server that was paused for longer
// than its lease still owns its sessions until another one acquires them, and nothing depends on
// clocks but how soon that is.
//
// Thread-safe. Callbacks run on threads of its own.
class S3Ownership {
 public:
  using Acquired = store::SessionStore::Acquired;
  using Report = std::function<void(const store::StoreReport&)>;

  S3Ownership(S3Client& client, const S3StoreOptions& options, Report report);
  ~S3Ownership() { End(); }

  absl::Status Start();  // acquires the lease
  void End();            // answers pending calls of Acquire and gives the lease up

  // These are SessionStore's.
  absl::StatusOr<store::RecoveredSessions> Recover();
  void Acquire(const std::string& id, Acquired done);
  void SetListener(store::OwnershipListener listener);
  void Decline(const std::string& id, SteadyTime until) { asks_.Decline(id, until); }
  bool sure() const;  // SessionStore::sure_of_ownership
  void Confirm(store::SessionStore::Done done);

  OwnedSessions& sessions() { return sessions_; }
  Garbage& garbage() { return garbage_; }

  // Stops owning a session. SendLeave is called later, from the thread that writes the session. No
  // Acquire of the session begins before that.
  Leaving BeginLeave(const std::string& id, Leave how);
  // Writes it. It is tried again later if the object store cannot be reached.
  void SendLeave(Leaving leaving, SteadyTime until);

 private:
  // A pending Acquire.
  struct Acquisition {
    std::string id;
    SteadyTime begin;
    Acquired done;
    SteadyTime next = {};    // when it is tried again
    std::string asked = {};  // the owner that was asked
    SteadyTime asked_at = {};
    bool answered = false;
  };

  void MoveLoop();
  void AcquireAll(std::vector<Acquisition>& calls, bool ending);
  bool AnswerLocally(Acquisition& call, bool ending, bool& wait);
  void Try(Acquisition& call, bool ending);
  absl::Status TryStored(Acquisition& call, StoredObject stored, bool ending);
  absl::Status Ask(Acquisition& call, const StoredObject& stored, bool ending);
  void Finish(Acquisition& call, absl::StatusOr<store::FoundSession> found);
  // Makes this server the owner of a session of which `stored` was read. Aborted: it has changed
  // meanwhile. FailedPrecondition: it is of another version. Damaged sessions are quarantined.
  absl::StatusOr<store::FoundSession> Conquer(const std::string& id, StoredObject stored,
                                              SteadyTime until);
  // Quarantines a session that nobody owns, if it still has this ETag ("": if its object cannot be
  // decoded), where `why` says that it is damaged; returns the error for whoever wanted it.
  // Aborted: it has changed meanwhile.
  absl::Status QuarantineDamaged(const std::string& id, const std::string& etag,
                                 const absl::Status& why, SteadyTime until);
  absl::Status WriteLeave(Leaving& leaving, SteadyTime until);
  void RetryLeaves();
  absl::Status ReleaseStray(const std::string& id);

  // Acquires those of the sessions that no server owns.
  absl::Status AcquireUnowned(const std::vector<std::string>& ids, store::RecoveredSessions& found);
  absl::StatusOr<std::vector<std::string>> ListSessions();
  absl::Status FindAbandoned();
  void Sweep();

  void LeaseLoop();
  // Renews the lease if it is due, and verifies the sessions if it was over.
  absl::Status KeepLease(SteadyTime& next);
  absl::Status Renew(SteadyTime until = {});
  absl::Status VerifyOwned();  // finds sessions that were lost while there was no lease
  absl::Status ListenOnce();
  SteadyTime Deadline() const;

  S3Client& client_;
  const S3StoreOptions options_;
  const Report report_;
  OwnedSessions sessions_;
  Garbage garbage_;
  Lease lease_;  // of Start, then of the lease's thread
  SeenLeases seen_;
  AskBox asks_;
  std::atomic<bool> verify_ = false;  // the lease was over
  // Nanoseconds of BootTime until which no other server can have acquired a session of this one.
  std::atomic<int64_t> sure_until_ = 0;
  // Used by the thread that acquires.
  SteadyTime next_sweep_, next_orphans_;
  bool abandoned_ = false;            // there may be sessions of servers that ended
  std::vector<std::string> unowned_;  // sessions that a sweep has still to look at

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  std::set<std::string> releasing_;        // between BeginLeave and SendLeave
  std::map<std::string, Leaving> unsent_;  // by id
  std::vector<Acquisition> acquisitions_;
  std::vector<store::SessionStore::Done> confirmations_;
  store::OwnershipListener listener_;  // without `lost`

  store::WorkThreads workers_;
  std::thread move_thread_, lease_thread_;
};

}  // namespace ovq::s3
