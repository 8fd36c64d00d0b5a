// Defines RedisClient, by which all threads of a store talk to its Redis server.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/redis/redis_connection.h"

namespace ovq::redis {

// Thread-safe. Connections are kept and used again. While the server cannot be reached, attempts to
// connect become rarer, up to one a second, and whatever comes between fails at once.
class RedisClient {
 public:
  // timeout: of connecting, and of each piece of a reply.
  RedisClient(RedisAddress address, absl::Duration timeout)
      : address_(std::move(address)), timeout_(timeout) {}

  // Loads the scripts, so that commands {"EVAL", script, ...} send the digest of one instead of it;
  // one that the server does not know by its digest is sent whole. Call it before other threads use
  // this object. Errors name the address.
  absl::Status Load(const std::vector<std::string>& scripts, SteadyTime until);

  // Sends the commands together, on one connection, and returns a reply to each, with the errors of
  // RedisConnection. Until `until`, all of them are sent again for as long as one of them is
  // Unavailable: so each may be executed several times, by itself or after those that follow it.
  // `unanswered` becomes true if the commands were sent and got no answer at least once.
  Replies RunTogether(const std::vector<Command>& commands, SteadyTime until = {},
                      bool* unanswered = nullptr);
  // Runs one command likewise.
  absl::StatusOr<Reply> Run(Command command, SteadyTime until = {});

  const RedisAddress& address() const { return address_; }

 private:
  Replies RunOnce(const std::vector<Command>& commands, bool& unanswered);
  Replies Exchange(RedisConnection& connection, const std::vector<Command>& commands) const;
  void ReturnConnection(std::unique_ptr<RedisConnection> connection, const absl::Status& status);
  SteadyTime NextAttempt() const;

  const RedisAddress address_;
  const absl::Duration timeout_;
  std::unordered_map<std::string, std::string> digests_;  // by script

  mutable std::mutex mutex_;  // guards the members below
  std::vector<std::unique_ptr<RedisConnection>> idle_;
  int failures_ = 0;  // since the last connection that worked
  SteadyTime next_attempt_ = {};
  absl::Status failure_ = {};  // the last one
};

}  // namespace ovq::redis
