// Connections to other servers, as streams of bytes on Boost.Asio: plain, or with TLS 1.2 or 1.3.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ovq::server {

// PEM files by which a client and a server know each other.
struct TlsTrust {
  std::string ca =
      {};  // who may have signed the server's certificate; "": the system's authorities
  std::string cert = {}, key = {};  // the client's own, for servers that ask for one; "": none
};

struct PeerAddress {
  std::string host = {};  // a name, or an IP address without brackets
  int port = 0;
  std::optional<TlsTrust> tls = {};  // nullopt: plain
};

// HOST:PORT, with brackets around an IPv6 address.
std::string HostPort(const std::string& host, int port);

// Not thread-safe. Any error is Unavailable and says why; the stream is of no more use then.
class ClientStream {
 public:
  // Connects. The certificate of a server with TLS must name the host. Errors: no such server, a
  // file that cannot be read, no common TLS, or one of connecting and the handshake took longer
  // than `patience`. Resolving a name is not bounded by it.
  static absl::StatusOr<std::unique_ptr<ClientStream>> Open(const PeerAddress& peer,
                                                            absl::Duration patience);
  ~ClientStream();

  // Writes all pieces in `patience` and a second more for each MiB.
  absl::Status Write(std::initializer_list<std::string_view> pieces, absl::Duration patience);
  // Waits for at least one byte and returns how many came, at most `size`; 0: the other side has
  // ended the stream.
  absl::StatusOr<size_t> ReadSome(char* into, size_t size, absl::Duration patience);
  // Whether nothing has come that is not read and the other side has not ended the stream, as far
  // as is known.
  bool idle() const;

 private:
  struct Parts;
  explicit ClientStream(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace ovq::server
