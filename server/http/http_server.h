// One address with HTTP/1.1 on it, and the limits that hold for whoever connects.
//
// On Boost.Beast: its parser bounds what a header may be before a byte of it is understood, and its
// sockets wait without a thread each, so a thousand open streams cost no thread at all.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/http/exchange.h"
#include "server/http/http_options.h"

namespace ovq {

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;  // must not block

  // Serves from now on. Unavailable if the address can't be had. What is passed outlives it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                           HttpEvents events, Handler handler);
  virtual ~HttpServer() = default;  // as Shutdown

  virtual int port() const = 0;
  // From now on a connection ends with its next answer, or, if it waits for a request, at once.
  virtual void EndConnections() = 0;
  // Takes no more connections, closes those there are, whose requests are told that the client is
  // gone, and returns when nothing holds one any more.
  virtual void Shutdown() = 0;
};

}  // namespace ovq
