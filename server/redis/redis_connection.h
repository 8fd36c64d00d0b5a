// Defines RedisConnection, one connection to a Redis server, on hiredis' writer and reader of its
// protocol.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/net/client_stream.h"
#include "server/redis/redis_address.h"

struct redisReader;

namespace ovq::redis {

// A reply. Errors of the server are statuses instead.
struct Reply {
  bool null = false;
  int64_t number = 0;
  std::string text = {};
  std::vector<Reply> items = {};
};

using Command = std::vector<std::string>;
// The error of a script that needs this server's lease, which is over.
inline constexpr absl::StatusCode kNoLease = absl::StatusCode::kUnauthenticated;
using Replies = std::vector<absl::StatusOr<Reply>>;

// Not thread-safe. Connects when it is first used, and again after an error of the connection.
class RedisConnection {
 public:
  // timeout: of connecting, and of each piece of a reply.
  RedisConnection(RedisAddress address, absl::Duration timeout);
  ~RedisConnection();

  // Sends the commands together and returns a reply to each. A command that the server refused has
  // an error of its own: Aborted, AlreadyExists and FailedPrecondition as the scripts say
  // (redis_scripts.h), ResourceExhausted if the server's memory is full, PermissionDenied for a
  // user who may not, Unavailable if the server cannot serve it now, Internal for any other error.
  // If the connection fails, all of them have the error Unavailable; where `unanswered` is true
  // then, nobody knows which were executed, otherwise none was.
  Replies RunTogether(const std::vector<Command>& commands);

  bool connected() const { return stream_ != nullptr; }
  bool unanswered() const { return unanswered_; }

 private:
  absl::Status Connect();
  absl::Status Send(const std::vector<Command>& commands);
  // `broken` is an error of the connection.
  absl::StatusOr<Reply> ReadReply(absl::Status& broken);
  absl::Status Broken(const absl::Status& why);  // closes the connection; its error

  const RedisAddress address_;
  const absl::Duration timeout_;
  bool unanswered_ = false;
  std::unique_ptr<server::ClientStream> stream_;  // null: not connected
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader_;
  std::vector<char> buffer_;  // what was read last
};

}  // namespace ovq::redis
