// Defines RedisWriter, the thread that makes all changes of sessions in Redis, in their order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/redis/redis_ownership.h"

namespace ovq::redis {

// A change of a session: an entry of its journal, or what `write` does.
struct RedisChange {
  const char* kind;  // null: it is not reported
  std::string id;
  SteadyTime begin;
  std::string epoch = kNotOwned;  // in which the session was this server's when it was asked for
  std::string entry = {};
  std::function<absl::Status(RedisChange&)> write = {};  // on the writer's thread
  store::SessionStore::Done done = {};
  uint64_t bytes = 0;
  absl::Status status = {};  // a change that has failed before is only reported
  bool always = false;       // it is made however many others wait
};

// Thread-safe.
class RedisWriter {
 public:
  RedisWriter(RedisClient& client, RedisOwnership& ownership, const RedisStoreOptions& options,
              store::Report report);
  ~RedisWriter() { Finish(); }

  // A change of the session in the epoch in which this server owns it now.
  RedisChange NewChange(const char* kind, const std::string& id,
                        store::SessionStore::Done done = {}) const;
  // A change beyond kMostChanges of them fails with ResourceExhausted, unless it is made always.
  void Enqueue(RedisChange change);
  void Finish();  // makes all changes and ends the thread

  // Sends one write of a session; for RedisChange::write. before: as for RedisOwnership::Script;
  // without it, what is known of the last write. Returns OK for a session that is not there.
  // FailedPrecondition if the last write was another.
  absl::Status Write(const char* script, const RedisChange& change,
                     const std::optional<std::string>& before,
                     const std::vector<std::string>& arguments);
  // Sends a command that is no numbered write, and waits for the replicas.
  absl::StatusOr<Reply> Send(const Command& command, const RedisChange& change);
  SteadyTime Deadline(const RedisChange& change) const {
    return After(change.begin, options_.patience);
  }

 private:
  struct Sent {
    Replies replies;          // one to each command
    absl::Status replicated;  // what keeps the replicas from having them
    bool unanswered = false;  // as RedisClient::RunTogether says
  };
  // Sends commands, and then waits for the replicas.
  Sent SendAll(std::vector<Command> commands, const RedisChange& first);
  void WriteEntries(std::vector<RedisChange>& changes, size_t begin, size_t end);
  void Loop();

  RedisClient& client_;
  RedisOwnership& ownership_;
  const RedisStoreOptions options_;
  const store::Report report_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  std::deque<RedisChange> changes_;

  std::thread thread_;
};

}  // namespace ovq::redis
