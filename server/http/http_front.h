// The HTTP front of a server: an HttpServer with the HttpApi on it, counted by Metrics.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/calls/service_context.h"
#include "server/http/http_api.h"
#include "server/http/http_server.h"

namespace ovq::server {

class HttpFront {
 public:
  // Starts to serve. Unavailable if the address can't be had. loopback: see HttpApi. Takes
  // options.memory from the engine. The arguments outlive it.
  static absl::StatusOr<std::unique_ptr<HttpFront>> Start(HttpOptions options, bool loopback,
                                                          ServiceContext& services);
  ~HttpFront() { Shutdown(); }

  int port() const { return server_->port(); }
  void SetReady(bool ready) { api_.SetReady(ready); }  // see HttpApi
  void EndConnections() { server_->EndConnections(); }
  void Shutdown() { server_->Shutdown(); }

 private:
  HttpFront(ServiceContext& services, bool loopback) : api_(services, loopback) {}

  HttpApi api_;
  std::unique_ptr<HttpServer> server_;  // ends before api_
};

}  // namespace ovq::server
