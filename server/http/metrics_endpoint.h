// GET /metrics on an address of its own (--metrics-address): plain HTTP, no tokens.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_server.h"
#include "server/telemetry/metrics.h"

namespace ovq::server {

// The text as a gzip file (RFC 1952).
std::string Gzip(const std::string& text);

// Serves from now on. address: HOST:PORT, port 0 for any. Unavailable if it can't be had. The
// metrics outlive the server.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& address,
                                                         Metrics& metrics);

}  // namespace ovq::server
