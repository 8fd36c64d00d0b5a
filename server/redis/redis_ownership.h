// Which server owns each session of a store in Redis.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/redis/owned_sessions.h"
#include "server/redis/redis_client.h"
#include "server/redis/redis_lease.h"
#include "server/redis/redis_options.h"
#include "server/store/session_store.h"

namespace ovq::redis {

// Owners are servers with a lease, and every acquisition of a session has an epoch. A server that
// was paused for longer than its lease still owns its sessions until another one acquires them;
// from then on its writes are refused, because they have an older epoch. So nothing depends on
// clocks but how soon a session is acquired.
//
// Thread-safe. Callbacks run on a thread of its own, which acquires sessions, and on the lease's.
class RedisOwnership {
 public:
  using Acquired = store::SessionStore::Acquired;

  RedisOwnership(RedisClient& client, const RedisStoreOptions& options, store::Report report);
  ~RedisOwnership() { End(); }

  absl::Status Start();  // acquires the lease
  void End();            // answers pending calls of Acquire and gives the lease up

  // These are SessionStore's.
  absl::StatusOr<store::RecoveredSessions> Recover();
  void Acquire(const std::string& id, Acquired done);
  void SetListener(store::OwnershipListener listener);
  OwnedSessions& sessions() { return sessions_; }
  RedisLease& lease() { return lease_; }

  // A script's command, with its keys and this server's name.
  Command Script(const char* script, const std::string& id,
                 const std::vector<std::string>& arguments) const;
  // The command of a numbered write. before: the number that must be the last one; "": any.
  Command Script(const char* script, const WriteNumber& write, const std::string& before,
                 const std::vector<std::string>& arguments) const;

  // Stops owning a session that this server owns in this epoch. Returns its last write, for
  // SendLeave, which is called later, from the thread that writes. No Acquire of the session begins
  // before that.
  WriteNumber BeginLeave(const std::string& id, const std::string& epoch);
  // script: kReleaseScript, kQuarantineScript or kRemoveScript. It is sent again later if Redis
  // cannot be reached.
  void SendLeave(const WriteNumber& last, const char* script, SteadyTime until);

 private:
  // A pending Acquire.
  struct Acquisition {
    std::string id;
    SteadyTime begin;
    Acquired done;
    SteadyTime tried = {};  // when another server was last to be asked
    bool asked = false;     // Redis has the request
    std::string dead = {};  // the lease of an owner that is dead, although it has not ended
  };
  // A lease of another server as it was seen, and since when it has been so.
  struct SeenLease {
    std::string value;
    SteadyTime since;
    int64_t ms = 0;  // that it was to last; more than before: it was renewed
  };
  // How a session is still to be given up: by which script, with the number of which write.
  struct Leaving {
    WriteNumber last;
    const char* script;
  };

  void MoveLoop();
  void AcquireAll(std::vector<Acquisition>& calls, bool ending);
  // Releases a session that was acquired and cannot be used, for this reason; damaged ones are
  // quarantined. Returns the error for whoever wanted it.
  absl::Status GiveBack(const std::string& id, const absl::Status& why);
  // Releases a session later that Redis may have given to this server.
  void ReleaseLater(const std::string& id);  // mutex_ is locked
  // Whether the call is answered now, without Redis; `wait`: it has to wait for a release.
  bool AnswerLocally(Acquisition& call, bool ending, bool& wait);
  // lapses: RedisLease's before the question.
  bool Answer(Acquisition& call, const absl::StatusOr<Reply>& reply, uint64_t lapses, bool ending);
  bool Ask(Acquisition& call, const Reply& elsewhere, bool ending);
  void Finish(Acquisition& call, absl::StatusOr<store::FoundSession> found);
  // Registers a session as kAcquireScript returned it, and checks it. Unavailable if the lease was
  // over meanwhile, so that the session may be another server's.
  absl::StatusOr<store::FoundSession> Register(const std::string& id, const Reply& mine,
                                               uint64_t lapses);
  absl::StatusOr<store::FoundSession> CheckStored(const std::string& id, const Reply& mine);
  void RetryReleases();
  // Acquires those of the sessions that no server owns or asks for, and passes each to `add` at
  // once. `others` counts and names those that it does not acquire.
  absl::Status AcquireUnowned(const std::vector<std::string>& ids, SteadyTime until,
                              const std::function<void(store::FoundSession)>& add,
                              store::RecoveredSessions& others);
  void Sweep();
  // Answers another server's request for a session that was this one's in that epoch (kNotOwned: it
  // was not). A request from before this server acquired the session has ended with that; who still
  // waits for the session asks again.
  void AnswerRequest(const std::string& id, const std::string& epoch);

  RedisClient& client_;
  const RedisStoreOptions options_;
  const store::Report report_;
  const std::string server_;  // this server's name
  OwnedSessions sessions_;
  // Used by the thread that acquires.
  std::map<std::string, SeenLease> seen_;  // by server
  SteadyTime next_sweep_;
  std::string sweep_cursor_ = "0";

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  std::set<std::string> releasing_;            // between BeginLeave and SendLeave
  std::map<std::string, Leaving> unreleased_;  // by id
  std::vector<Acquisition> acquisitions_;
  store::OwnershipListener listener_;  // without `lost`

  std::thread move_thread_;
  RedisLease lease_;  // ends first
};

}  // namespace ovq::redis
