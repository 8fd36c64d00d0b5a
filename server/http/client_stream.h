// The bytes of one client: a TCP socket, plain or with TLS.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <functional>
#include <memory>

namespace ovq::server {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// All functions run on the socket's strand, and so do the callbacks. At most one Read and one Write
// at a time.
class ClientStream {
 public:
  using Done = std::function<void(ErrorCode error, size_t bytes)>;

  // tls: null for plain text.
  static std::unique_ptr<ClientStream> Make(Tcp::socket socket,
                                            std::shared_ptr<asio::ssl::context> tls);
  virtual ~ClientStream() = default;

  virtual Tcp::socket& socket() = 0;
  virtual void Handshake(Done done) = 0;                         // before all else; bytes: 0
  virtual void Read(asio::mutable_buffer bytes, Done done) = 0;  // at least one byte
  virtual void Write(asio::const_buffer bytes, Done done) = 0;   // at least one byte
  // Tells the client that nothing follows. TLS also waits until the client says so; then the bytes
  // that it still sends are no concern of the caller, and `drained` is true.
  virtual void ShutDown(std::function<void(bool drained)> done) = 0;
};

}  // namespace ovq::server
