// The HTTP front of a server: its address, what is served there and how that is counted.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/calls/service_context.h"
#include "server/http/http_api.h"
#include "server/http/http_server.h"

namespace ovq {

class HttpFront {
 public:
  // Serves from now on. Unavailable if the address can't be had. loopback: HttpApi's. What is
  // passed outlives it; options.memory is the engine's.
  static absl::StatusOr<std::unique_ptr<HttpFront>> Start(HttpOptions options, bool loopback,
                                                          ServiceContext& services);
  ~HttpFront() { Shutdown(); }

  int port() const { return server_->port(); }
  void SetReady(bool ready) { api_.SetReady(ready); }  // what /health says
  void EndConnections() { server_->EndConnections(); }
  void Shutdown() { server_->Shutdown(); }

 private:
  HttpFront(ServiceContext& services, bool loopback) : api_(services, loopback) {}

  HttpApi api_;
  std::unique_ptr<HttpServer> server_;  // ends before it
};

}  // namespace ovq
