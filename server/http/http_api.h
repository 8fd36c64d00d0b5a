// What is served over HTTP: which request goes where.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "server/calls/service_context.h"
#include "server/http/exchange.h"
#include "server/http/response_store.h"

namespace ovq {

// The labels of all requests in metrics, logs and spans: the patterns of the routes.
std::vector<const char*> HttpRouteLabels();

class HttpApi {
 public:
  // loopback: only names of this machine may be asked for, so that no page from elsewhere can have
  // a browser here ask under a name of its own.
  HttpApi(ServiceContext& services, bool loopback);

  // Answers the request, at once or on other threads; does not block.
  void Handle(std::shared_ptr<Exchange> exchange);
  // What /health says from now on.
  void SetReady(bool ready) { ready_ = ready; }

 private:
  ServiceContext& services_;
  const bool loopback_;
  ResponseStore responses_;
  std::atomic<bool> ready_ = true;
};

}  // namespace ovq
