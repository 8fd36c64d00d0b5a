#include "server/net/client_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <vector>

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/ssl.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Error = boost::system::error_code;

constexpr absl::Duration kAlertPatience = absl::Milliseconds(100);

absl::Status Failed(const Error& error, absl::Duration patience) {
  if (error == beast::error::timeout) {
    return absl::UnavailableError(
        absl::StrCat("no answer within ", absl::FormatDuration(patience)));
  }
  return absl::UnavailableError(error.message());
}

// Whether `host` is an address, which a TLS greeting must not name.
bool IsAddress(const std::string& host) {
  Error error;
  asio::ip::make_address(host, error);
  return !error;
}

// Loads a file into a context by load(path, error); "" loads nothing.
template <class Load>
absl::Status LoadFile(const std::string& path, Load load) {
  if (path.empty()) return absl::OkStatus();
  Error error;
  load(path, error);
  return error ? absl::UnavailableError(absl::StrCat(path, ": ", error.message()))
               : absl::OkStatus();
}

}  // namespace

std::string HostPort(const std::string& host, int port) {
  const bool v6 = host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

struct ClientStream::Parts {
  asio::io_context io{1};
  asio::ssl::context context{asio::ssl::context::tls_client};
  std::optional<beast::ssl_stream<beast::tcp_stream>> secure;
  std::optional<beast::tcp_stream> plain;

  beast::tcp_stream& socket() { return secure ? secure->next_layer() : *plain; }

  // Runs one asynchronous operation to its end on this thread; the socket's timer bounds it.
  // start(done) begins it. `bytes`: how many it has moved, if it is one that moves bytes.
  template <class Start>
  Error Do(absl::Duration patience, Start start, size_t* bytes = nullptr) {
    Error result;
    socket().expires_after(absl::ToChronoNanoseconds(patience));
    start([&](Error error, auto... rest) {
      result = error;
      if constexpr (requires { size_t{rest...}; }) {
        if (bytes != nullptr) *bytes = size_t{rest...};
      }
    });
    io.restart();
    io.run();
    return result;
  }

  absl::Status PrepareTls(const std::string& host, const TlsTrust& trust) {
    Error error;
    context.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
    if (!error && trust.ca.empty()) context.set_default_verify_paths(error);
    if (error) return absl::UnavailableError(error.message());
    RETURN_IF_ERROR(LoadFile(trust.ca, [&](const std::string& path, Error& failed) {
      context.load_verify_file(path, failed);
    }));
    RETURN_IF_ERROR(LoadFile(trust.cert, [&](const std::string& path, Error& failed) {
      context.use_certificate_chain_file(path, failed);
    }));
    RETURN_IF_ERROR(LoadFile(trust.key, [&](const std::string& path, Error& failed) {
      context.use_private_key_file(path, asio::ssl::context::pem, failed);
    }));
    secure.emplace(io, context);
    secure->set_verify_mode(asio::ssl::verify_peer, error);
    if (!error) secure->set_verify_callback(asio::ssl::host_name_verification(host), error);
    if (error) return absl::UnavailableError(error.message());
    if (!IsAddress(host)) SSL_set_tlsext_host_name(secure->native_handle(), host.c_str());
    return absl::OkStatus();
  }
};

ClientStream::ClientStream(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ClientStream::~ClientStream() = default;

absl::StatusOr<std::unique_ptr<ClientStream>> ClientStream::Open(const PeerAddress& peer,
                                                                 absl::Duration patience) {
  auto parts = std::make_unique<Parts>();
  if (peer.tls) {
    RETURN_IF_ERROR(parts->PrepareTls(peer.host, *peer.tls));
  } else {
    parts->plain.emplace(parts->io);
  }
  Error error;
  const auto found =
      asio::ip::tcp::resolver(parts->io).resolve(peer.host, absl::StrCat(peer.port), error);
  if (error) return Failed(error, patience);
  error = parts->Do(patience,
                    [&](auto done) { parts->socket().async_connect(found, std::move(done)); });
  if (error) return Failed(error, patience);
  parts->socket().socket().set_option(asio::ip::tcp::no_delay(true), error);
  if (peer.tls) {
    error = parts->Do(patience, [&](auto done) {
      parts->secure->async_handshake(asio::ssl::stream_base::client, std::move(done));
    });
    if (error) return Failed(error, patience);
  }
  return std::unique_ptr<ClientStream>(new ClientStream(std::move(parts)));
}

absl::Status ClientStream::Write(std::initializer_list<std::string_view> pieces,
                                 absl::Duration patience) {
  std::vector<asio::const_buffer> buffers;
  size_t bytes = 0;
  for (const std::string_view piece : pieces) {
    buffers.emplace_back(piece.data(), piece.size());
    bytes += piece.size();
  }
  patience += (bytes >> 20) * absl::Seconds(1);
  const Error error = parts_->Do(patience, [&](auto done) {
    parts_->secure ? asio::async_write(*parts_->secure, buffers, std::move(done))
                   : asio::async_write(*parts_->plain, buffers, std::move(done));
  });
  if (!error) return absl::OkStatus();
  if (parts_->secure && error != beast::error::timeout) {
    // The other side may have said why before it closed the connection.
    char byte = 0;
    const Error why = parts_->Do(kAlertPatience, [&](auto done) {
      parts_->secure->async_read_some(asio::buffer(&byte, 1), std::move(done));
    });
    if (why.category() == asio::error::get_ssl_category()) return Failed(why, patience);
  }
  return Failed(error, patience);
}

absl::StatusOr<size_t> ClientStream::ReadSome(char* into, size_t size, absl::Duration patience) {
  const asio::mutable_buffer buffer(into, size);
  size_t bytes = 0;
  const auto start = [&](auto done) {
    parts_->secure ? parts_->secure->async_read_some(buffer, std::move(done))
                   : parts_->plain->async_read_some(buffer, std::move(done));
  };
  const Error error = parts_->Do(patience, start, &bytes);
  if (error == asio::error::eof) return 0;
  if (error) return Failed(error, patience);
  return bytes;
}

bool ClientStream::idle() const {
  char byte = 0;
  const ssize_t n =
      recv(parts_->socket().socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace ovq::server
