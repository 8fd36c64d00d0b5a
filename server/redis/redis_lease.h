// Defines RedisLease, by which other servers know that this one lives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/redis/owned_sessions.h"
#include "server/redis/redis_client.h"
#include "server/redis/redis_options.h"
#include "server/store/session_store.h"

namespace ovq::redis {

// Thread-safe. A thread of its own renews the lease, hears what other servers ask for, and finds
// the sessions that were lost while there was no lease.
class RedisLease {
 public:
  // Receives the id of a session for which another server asks, and the epoch in which the session
  // was this server's before Redis said that the request is open. On the thread of this object.
  using Asked = std::function<void(const std::string& id, const std::string& epoch)>;

  RedisLease(RedisClient& client, const RedisStoreOptions& options, const store::Report& report,
             const std::string& server, OwnedSessions& sessions, Asked asked)
      : client_(client),
        options_(options),
        report_(report),
        server_(server),
        sessions_(sessions),
        asked_(std::move(asked)) {}
  ~RedisLease() { End(); }

  absl::Status Start();  // acquires the lease
  void End();            // gives it up

  // These are SessionStore's sure_of_ownership and ConfirmOwnership.
  bool sure() const;
  void Confirm(store::SessionStore::Done done);
  // How often this server's sessions had to be verified. An answer that says that a session is this
  // server's does not count where this has changed since the question.
  uint64_t lapses() const { return lapses_; }

  // Runs commands as RedisClient does, and once more after renewing the lease if that was over.
  Replies RunTogether(const std::vector<Command>& commands, SteadyTime until, bool& unanswered);

 private:
  void Loop();
  // Renews the lease if it is due or somebody waits for a confirmation, and verifies the sessions
  // if it was over.
  absl::Status Keep(SteadyTime& next, bool confirming);
  // Waits for requests of other servers, some tenths of a second. Returns a session's id, if any.
  absl::StatusOr<std::optional<std::string>> AwaitRequest(SteadyTime& next);
  // Tells of a request that is still open.
  absl::Status AnswerRequest(const std::string& id);
  absl::Status Renew(SteadyTime until = {});
  void BeginVerify();
  // Finds sessions that were lost while there was no lease.
  absl::Status Verify(SteadyTime until);

  RedisClient& client_;
  const RedisStoreOptions& options_;
  const store::Report& report_;
  const std::string& server_;  // this server's name
  OwnedSessions& sessions_;
  const Asked asked_;

  std::atomic<uint64_t> renewals_ = 0;
  std::atomic<int64_t> since_ = 0;    // as kRenewScript returned it
  std::atomic<bool> verify_ = false;  // the lease was over, or Redis could not be asked
  std::atomic<uint64_t> lapses_ = 0;
  // Nanoseconds of a clock that runs while the machine sleeps: when the last renewal was sent, and
  // until when no other server can have acquired a session of this one.
  std::atomic<int64_t> renewed_ = 0, sure_until_ = 0;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<store::SessionStore::Done> confirmations_;

  std::thread thread_;
};

}  // namespace ovq::redis
