// GET /metrics on an address of its own (--metrics-address): plain HTTP, no tokens.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http/http_server.h"
#include "server/telemetry/metrics.h"

namespace ovq {

// The text as a gzip file (RFC 1952).
std::string Gzip(const std::string& text);

class MetricsEndpoint {
 public:
  // Serves from now on. address: HOST:PORT, port 0 for any. Unavailable if it can't be had. The
  // metrics outlive it.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address,
                                                                Metrics& metrics);

  int port() const { return server_->port(); }

 private:
  std::unique_ptr<HttpServer> server_;
};

}  // namespace ovq
