#include "server/http/http_front.h"

#include <utility>

#include "base/status_macros.h"

namespace ovq::server {

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(HttpOptions options, bool loopback,
                                                            ServiceContext& services) {
  std::unique_ptr<HttpFront> front(new HttpFront(services, loopback));
  Metrics& metrics = services.metrics;
  const HttpEvents events = {
      .connections = [&metrics](int open) { metrics.http_connections.Set(open); },
      .refused = [&metrics](const char* why) { metrics.http_refusals.at(why)->Increment(); },
      .bytes = [&metrics](size_t received, size_t sent) { metrics.HttpBytes(received, sent); }};
  options.memory = services.engine.options().request_memory;
  ASSIGN_OR_RETURN(
      front->server_,
      HttpServer::Start(options, events, [&api = front->api_](std::shared_ptr<Exchange> exchange) {
        api.Handle(std::move(exchange));
      }));
  return front;
}

}  // namespace ovq::server
