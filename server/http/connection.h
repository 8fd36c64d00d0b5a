// The connections of an HTTP server, and the server as they see it.
#pragma once

#include <memory>
#include <string>

#include "server/http/client_stream.h"
#include "server/http/exchange.h"
#include "server/http/http_options.h"

namespace ovq::server {

class ConnectionHost;

// Reads requests one after another and writes their answers.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  static std::shared_ptr<Connection> Make(ConnectionHost& host, std::string peer,
                                          std::unique_ptr<ClientStream> stream);
  virtual ~Connection() = default;
  virtual void Start() = 0;              // once
  virtual void Close(bool if_idle) = 0;  // any thread
};

// A server as its connections see it.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual const HttpOptions& options() const = 0;
  virtual const HttpEvents& events() const = 0;
  virtual bool ending() const = 0;  // connections take no further request
  virtual void Handle(std::shared_ptr<Exchange> exchange) = 0;
  // Marks a connection without a request. Idle ones are closed first to make room.
  virtual void SetIdle(Connection* connection, bool idle) = 0;
  virtual void OnConnectionClosed(Connection* connection) = 0;
};

}  // namespace ovq::server
