// Sends one HTTP request on a connection of its own.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace ovq::server {

// The target of a request: http[s]://HOST:PORT/PATH.
struct HttpTarget {
  bool tls = false;
  std::string host;  // a name, or an IP address without brackets
  int port = 0;
  std::string path;
  // With TLS: a PEM file of the authorities that may have signed the server's certificate; empty:
  // the system's.
  std::string ca = {};
};

struct HttpAnswer {
  int status = 0;
  std::string body;  // at most 1 MiB; what goes beyond is left out
};

// Posts JSON on a connection of its own and waits for the answer. nullopt if there is none: no such
// server, a certificate that does not name the host, or one of connecting, the TLS handshake,
// writing and reading took longer than `patience`. Resolving a name is not bounded by it.
std::optional<HttpAnswer> PostJson(const HttpTarget& target, const std::string& json,
                                   absl::Duration patience);

}  // namespace ovq::server
