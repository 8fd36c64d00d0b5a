// A connection to an HTTP/1.1 server on Boost.Beast's parser: plain, or with TLS 1.2 or 1.3.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ovq::server {

// A server of HTTP: http[s]://HOST:PORT.
struct HttpOrigin {
  bool tls = false;
  std::string host;  // a name, or an IP address without brackets
  int port = 0;
  // With TLS: a PEM file of the authorities that may have signed the server's certificate; empty:
  // the system's.
  std::string ca = {};

  // The header Host of requests to it: without the port where that is the scheme's own.
  std::string HostHeader() const;
  std::string Url() const;  // http[s]://HOST[:PORT]
};

struct ClientRequest {
  std::string method;                                             // a known one, such as GET
  std::string target;                                             // path and query, as it is sent
  std::vector<std::pair<std::string, std::string>> headers = {};  // beside Host and Content-Length
  std::string_view body = {};
};

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};
  bool whole = true;  // false: the body broke off, or is longer than it may be
  bool sized = true;  // false: only the end of the connection says where the body ends
};

// Not thread-safe. Connects when it is first used, and again after an error or when the server has
// closed the connection.
class ClientConnection {
 public:
  explicit ClientConnection(HttpOrigin origin);
  ~ClientConnection();

  // Sends a request and waits for the response, whose body has at most max_body bytes. Unavailable
  // says why there is none: no such server, a certificate that does not name the host, or one of
  // connecting, the TLS handshake, writing and reading any piece took longer than `patience`, or
  // reading all of it a second more for each MiB of max_body. Resolving a name is not bounded.
  absl::StatusOr<ClientResponse> Exchange(const ClientRequest& request, absl::Duration patience,
                                          size_t max_body);

  // Whether the next request goes over the same connection, as far as is known.
  bool connected() const;
  // Whether the server may have received the last request.
  bool sent() const { return sent_; }

 private:
  struct Stream;

  absl::Status Connect(absl::Duration patience);
  absl::Status Broken(const absl::Status& why);  // closes the connection; the error

  const HttpOrigin origin_;
  std::unique_ptr<Stream> stream_;  // null: not connected
  bool sent_ = false;
};

}  // namespace ovq::server
