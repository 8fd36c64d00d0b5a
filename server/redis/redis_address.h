// Where a Redis server is, as the URL of --session-store says it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/net/client_stream.h"

namespace ovq::redis {

struct RedisAddress {
  std::string host = {};  // a name, or an address; IPv6 without brackets
  int port = 6379;
  int database = 0;
  std::string user = {};                     // "": Redis's default user
  std::string password = {};                 // "": none
  std::optional<server::TlsTrust> tls = {};  // rediss://

  std::string Text() const;  // the URL, without the password
};

inline constexpr char kRedisUrlForm[] = "redis[s]://[USER@]HOST[:PORT][/DB]";

// Parses kRedisUrlForm. InvalidArgument says what was expected; the text is not repeated where it
// holds a password.
absl::StatusOr<RedisAddress> ParseRedisUrl(std::string_view url);

}  // namespace ovq::redis
