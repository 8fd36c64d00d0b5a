// The connections of an HTTP server.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <utility>

#include "server/http/exchange.h"

namespace ovq::server {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Reads requests one after another and writes their answers.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  virtual ~Connection() = default;
  virtual void Start() = 0;              // once
  virtual void Close(bool if_idle) = 0;  // any thread; if_idle: only without a request
};

// A server as its connections see it.
struct ConnectionHost {
  ConnectionHost(const HttpOptions& options, HttpEvents events, HttpHandle handle)
      : options(options), events(std::move(events)), handle(std::move(handle)) {}

  const HttpOptions options;
  const HttpEvents events;
  const HttpHandle handle;
  std::atomic<bool> ending = false;  // connections take no further request
  // Marks a connection without a request. Idle ones are closed first to make room.
  virtual void SetIdle(Connection* connection, bool idle) = 0;
  virtual void OnConnectionClosed(Connection* connection) = 0;
  // Adds to the number of requests that have begun and whose answers are not sent.
  virtual void CountRequests(int more) = 0;

 protected:
  ~ConnectionHost() = default;
};

// tls: null for plain text. The host outlives the connection.
std::shared_ptr<Connection> MakeConnection(ConnectionHost& host, std::string peer,
                                           Tcp::socket socket,
                                           std::shared_ptr<asio::ssl::context> tls);

}  // namespace ovq::server
