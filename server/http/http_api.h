// The HTTP interface: routes requests to their handlers.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "server/calls/service_context.h"
#include "server/http/exchange.h"
#include "server/http/response_store.h"

namespace ovq::server {

// The labels of all requests in metrics, logs and spans: the patterns of the routes.
std::vector<const char*> HttpRouteLabels();

class HttpApi {
 public:
  // loopback: the header `host` must name this machine, so that no foreign page can make a local
  // browser send requests under a name of its own (DNS rebinding).
  HttpApi(ServiceContext& services, bool loopback);

  // Answers the request, now or on other threads. Does not block.
  void Handle(std::shared_ptr<Exchange> exchange);
  // The state that /health reports.
  void SetReady(bool ready) { ready_ = ready; }

 private:
  ServiceContext& services_;
  const bool loopback_;
  ResponseStore responses_;
  std::atomic<bool> ready_ = true;
};

}  // namespace ovq::server
