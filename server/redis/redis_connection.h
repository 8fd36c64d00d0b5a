// Defines RedisConnection, one connection to a Redis server, on hiredis.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct redisContext;

namespace ovq::redis {

struct RedisAddress {
  std::string host = {};
  int port = 6379;
  int database = 0;
  std::string password = {};  // "": none
};

// A reply. Errors of the server are statuses instead.
struct Reply {
  bool null = false;
  int64_t number = 0;
  std::string text = {};
  std::vector<Reply> items = {};
};

using Command = std::vector<std::string>;

// Not thread-safe. Connects when it is first used, and again after an error of the connection.
class RedisConnection {
 public:
  // timeout: of connecting, and of each reply.
  RedisConnection(RedisAddress address, absl::Duration timeout);
  ~RedisConnection();

  // Sends the commands together. Errors: Unavailable if the server cannot be reached or the
  // connection broke, so that nobody knows which commands were executed. A command that the server
  // refused has a status of its own: Aborted for the scripts' FENCED, else FailedPrecondition.
  absl::StatusOr<std::vector<absl::StatusOr<Reply>>> RunTogether(
      const std::vector<Command>& commands);
  // Runs one command, with all of its errors.
  absl::StatusOr<Reply> Run(Command command);

 private:
  absl::Status Connect();
  absl::StatusOr<absl::StatusOr<Reply>> ReadReply();
  absl::Status Broken();  // closes the connection; its error

  const RedisAddress address_;
  const absl::Duration timeout_;
  std::unique_ptr<redisContext, void (*)(redisContext*)> context_;
};

}  // namespace ovq::redis
