// The HTTP front: routes requests to their handlers.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/calls/service_context.h"
#include "server/http/browser_rules.h"
#include "server/http/http_server.h"

namespace ovq::server {

// The labels of all requests in metrics, logs and spans: the patterns of the routes.
std::vector<const char*> HttpRouteLabels();

class HttpApi {
 public:
  HttpApi(ServiceContext& services, BrowserRules rules);

  // Starts to serve on an address, counted by Metrics. Unavailable if it can't be had. Takes
  // options.memory from the engine.
  absl::Status Listen(HttpOptions options);
  HttpServer& server() { return *server_; }  // after Listen
  // Answers the request, now or on other threads. Does not block.
  void Handle(std::shared_ptr<Exchange> exchange);
  // The state that /health reports.
  void SetReady(bool ready) { ready_ = ready; }

 private:
  ServiceContext& services_;
  const BrowserRules rules_;
  std::atomic<bool> ready_ = true;
  std::unique_ptr<HttpServer> server_;  // ends first
};

}  // namespace ovq::server
