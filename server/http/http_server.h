// An HTTP/1.1 server on one address, with limits for its clients.
//
// It stands on Boost.Beast, whose parser bounds a header before it interprets it, and whose sockets
// wait without a thread each: a thousand open streams cost no thread.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/http/exchange.h"

namespace ovq::server {

class HttpServer {
 public:
  // Starts to serve. Unavailable if the address can't be had. Pointers in `options` and whatever
  // the callbacks use outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                           HttpEvents events, HttpHandle handle);
  virtual ~HttpServer() = default;  // shuts down

  virtual int port() const = 0;
  // Ends each connection with its next answer, and at once those on which no header of a request
  // has come yet.
  virtual void EndConnections() = 0;
  // Waits until all requests whose headers have come have their answers, or until this time:
  // then it returns false.
  virtual bool AwaitAnswers(absl::Time deadline) = 0;
  // Takes no more connections and closes the open ones, whose requests see that the client is gone.
  // Returns when no connection is held any more.
  virtual void Shutdown() = 0;
};

}  // namespace ovq::server
