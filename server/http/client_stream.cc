#include "server/http/client_stream.h"

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

namespace ovq::server {
namespace {

class PlainStream final : public ClientStream {
 public:
  explicit PlainStream(Tcp::socket socket) : socket_(std::move(socket)) {}

  Tcp::socket& socket() override { return socket_; }
  void Handshake(Done done) override { done({}, 0); }
  void Read(asio::mutable_buffer bytes, Done done) override {
    socket_.async_read_some(asio::mutable_buffers_1(bytes), std::move(done));
  }
  void Write(asio::const_buffer bytes, Done done) override {
    socket_.async_write_some(asio::const_buffers_1(bytes), std::move(done));
  }
  void ShutDown(std::function<void(bool drained)> done) override {
    ErrorCode ignored;
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
    done(false);
  }

 private:
  Tcp::socket socket_;
};

class TlsStream final : public ClientStream {
 public:
  TlsStream(Tcp::socket socket, std::shared_ptr<asio::ssl::context> tls)
      : tls_(std::move(tls)), stream_(std::move(socket), *tls_) {}

  Tcp::socket& socket() override { return stream_.next_layer(); }
  void Handshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [done = std::move(done)](ErrorCode error) { done(error, 0); });
  }
  void Read(asio::mutable_buffer bytes, Done done) override {
    stream_.async_read_some(asio::mutable_buffers_1(bytes), std::move(done));
  }
  void Write(asio::const_buffer bytes, Done done) override {
    stream_.async_write_some(asio::const_buffers_1(bytes), std::move(done));
  }
  void ShutDown(std::function<void(bool drained)> done) override {
    stream_.async_shutdown([done = std::move(done)](ErrorCode) { done(true); });
  }

 private:
  const std::shared_ptr<asio::ssl::context> tls_;
  asio::ssl::stream<Tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<ClientStream> ClientStream::Make(Tcp::socket socket,
                                                 std::shared_ptr<asio::ssl::context> tls) {
  if (tls == nullptr) return std::make_unique<PlainStream>(std::move(socket));
  return std::make_unique<TlsStream>(std::move(socket), std::move(tls));
}

}  // namespace ovq::server
