#include "server/http_client/client_connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <optional>

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Error = boost::system::error_code;
using Parser = http::response_parser<http::string_body>;

// Runs one asynchronous operation to its end on this thread; the streams' own timers bound it.
template <class Start>
Error Await(asio::io_context& io, Start start) {
  Error result;
  start([&result](Error error, auto&&...) { result = error; });
  io.restart();
  io.run();
  return result;
}

// Whether `host` is an address, which a TLS greeting must not name.
bool IsAddress(const std::string& host) {
  Error error;
  asio::ip::make_address(host, error);
  return !error;
}

std::string Bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]");
}

}  // namespace

std::string HttpOrigin::HostHeader() const {
  const bool usual = port == (tls ? 443 : 80);
  return usual ? Bracketed(host) : absl::StrCat(Bracketed(host), ":", port);
}

std::string HttpOrigin::Url() const {
  return absl::StrCat(tls ? "https://" : "http://", HostHeader());
}

struct ClientConnection::Stream {
  asio::io_context io{1};
  asio::ssl::context context{asio::ssl::context::tls_client};
  std::optional<beast::ssl_stream<beast::tcp_stream>> secure;
  std::optional<beast::tcp_stream> plain;
  beast::flat_buffer buffer;

  beast::tcp_stream& socket() { return secure ? secure->next_layer() : *plain; }
  // Runs an operation on whichever stream it is. start(stream, done).
  template <class Start>
  Error Do(absl::Duration patience, Start start) {
    socket().expires_after(absl::ToChronoNanoseconds(patience));
    return Await(io, [&](auto done) {
      secure ? start(*secure, std::move(done)) : start(*plain, std::move(done));
    });
  }
  // Reads one response, of which each piece may take `patience`.
  Error Read(absl::Duration patience, size_t max_body, Parser& parser) {
    parser.body_limit(max_body);
    const auto end = std::chrono::steady_clock::now() +
                     absl::ToChronoNanoseconds(patience + (max_body >> 20) * absl::Seconds(1));
    Error error;
    do {
      error = Do(patience, [&](auto& on, auto done) {
        http::async_read_some(on, buffer, parser, std::move(done));
      });
      if (!error && std::chrono::steady_clock::now() > end) error = asio::error::timed_out;
    } while (!error && !parser.is_done());
    return error;
  }
  Error PrepareTls(const HttpOrigin& origin) {
    Error error;
    context.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
    if (!error && origin.ca.empty()) context.set_default_verify_paths(error);
    if (!error && !origin.ca.empty()) context.load_verify_file(origin.ca, error);
    if (error) return error;
    secure.emplace(io, context);
    secure->set_verify_mode(asio::ssl::verify_peer, error);
    if (!error) secure->set_verify_callback(asio::ssl::host_name_verification(origin.host), error);
    if (!error && !IsAddress(origin.host)) {
      SSL_set_tlsext_host_name(secure->native_handle(), origin.host.c_str());
    }
    return error;
  }
};

ClientConnection::ClientConnection(HttpOrigin origin) : origin_(std::move(origin)) {}
ClientConnection::~ClientConnection() = default;

bool ClientConnection::connected() const {
  if (stream_ == nullptr) return false;
  // Between responses a server sends nothing, unless it ends the connection.
  char byte = 0;
  const ssize_t n =
      recv(stream_->socket().socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

absl::Status ClientConnection::Broken(const std::string& why) {
  stream_.reset();
  return absl::UnavailableError(absl::StrCat(origin_.Url(), ": ", why));
}

absl::Status ClientConnection::Connect(absl::Duration patience) {
  stream_ = std::make_unique<Stream>();
  Stream& stream = *stream_;
  Error error;
  if (origin_.tls) {
    error = stream.PrepareTls(origin_);
  } else {
    stream.plain.emplace(stream.io);
  }
  if (error) return Broken(error.message());
  const auto found =
      asio::ip::tcp::resolver(stream.io).resolve(origin_.host, absl::StrCat(origin_.port), error);
  if (error) return Broken(error.message());
  stream.socket().expires_after(absl::ToChronoNanoseconds(patience));
  error =
      Await(stream.io, [&](auto done) { stream.socket().async_connect(found, std::move(done)); });
  if (error) return Broken(error.message());
  stream.socket().socket().set_option(asio::ip::tcp::no_delay(true), error);
  if (!origin_.tls) return absl::OkStatus();
  stream.socket().expires_after(absl::ToChronoNanoseconds(patience));
  error = Await(stream.io, [&](auto done) {
    stream.secure->async_handshake(asio::ssl::stream_base::client, std::move(done));
  });
  return error ? Broken(error.message()) : absl::OkStatus();
}

absl::StatusOr<ClientResponse> ClientConnection::Exchange(const ClientRequest& request,
                                                          absl::Duration patience,
                                                          size_t max_body) {
  sent_ = false;
  if (!connected()) RETURN_IF_ERROR(Connect(patience));
  Stream& stream = *stream_;
  http::request<http::span_body<const char>> out(http::string_to_verb(request.method),
                                                 request.target, 11);
  out.set(http::field::host, origin_.HostHeader());
  for (const auto& [name, value] : request.headers) out.set(name, value);
  out.body() = {request.body.data(), request.body.size()};
  out.prepare_payload();
  sent_ = true;
  Error error = stream.Do(
      patience, [&](auto& on, auto done) { http::async_write(on, out, std::move(done)); });
  // A server that refuses a request may close the connection before it has read all of it.
  const Error not_written = error;
  std::optional<Parser> parser;
  do {
    parser.emplace();
    error = stream.Read(patience, max_body, *parser);
    if (error && !parser->is_header_done())
      return Broken((not_written ? not_written : error).message());
  } while (!error && parser->get().result_int() / 100 == 1);  // the response is still to come
  ClientResponse response{.status = static_cast<int>(parser->get().result_int()),
                          .whole = !error,
                          .sized = !parser->need_eof()};
  for (const auto& field : parser->get()) {
    const auto name = field.name_string();
    response.headers[absl::AsciiStrToLower({name.data(), name.size()})] =
        std::string(field.value());
  }
  response.body = std::move(parser->get().body());
  // Bytes that no request asked for must not be taken for the next response.
  const bool surplus = stream.buffer.size() > 0;
  if (error || not_written || surplus || !parser->get().keep_alive()) stream_.reset();
  return response;
}

}  // namespace ovq::server
