#include "server/http/http_front.h"

#include <utility>

namespace ovq {

absl::StatusOr<std::unique_ptr<HttpFront>> HttpFront::Start(HttpOptions options, bool loopback,
                                                            ServiceContext& services) {
  std::unique_ptr<HttpFront> front(new HttpFront(services, loopback));
  Metrics& metrics = services.metrics;
  const HttpEvents events = {
      .connections = [&metrics](int open) { metrics.SetHttpConnections(open); },
      .refused = [&metrics](const char* why) { metrics.HttpRefused(why); },
      .bytes = [&metrics](size_t received, size_t sent) { metrics.HttpBytes(received, sent); }};
  options.memory = services.engine.options().request_memory;
  absl::StatusOr<std::unique_ptr<HttpServer>> server =
      HttpServer::Start(options, events, [&api = front->api_](std::shared_ptr<Exchange> exchange) {
        api.Handle(std::move(exchange));
      });
  if (!server.ok()) return server.status();
  front->server_ = *std::move(server);
  return front;
}

}  // namespace ovq
