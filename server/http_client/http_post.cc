#include "server/http_client/http_post.h"

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include "absl/strings/str_cat.h"

namespace ovq::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Error = boost::system::error_code;

constexpr uint64_t kMaxAnswerBody = uint64_t{1} << 20;

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

template <class Stream>
std::optional<HttpAnswer> Post(asio::io_context& io, Stream& stream, const HttpTarget& target,
                               const std::string& json, std::chrono::nanoseconds patience) {
  const bool v6 = target.host.find(':') != std::string::npos;
  http::request<http::string_body> request(http::verb::post, target.path, 11);
  request.set(http::field::host,
              absl::StrCat(v6 ? "[" : "", target.host, v6 ? "]:" : ":", target.port));
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = json;
  request.prepare_payload();
  auto& socket = beast::get_lowest_layer(stream);
  socket.expires_after(patience);
  Error error = Await(io, [&](auto done) { http::async_write(stream, request, std::move(done)); });
  if (error) return std::nullopt;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBody);
  beast::flat_buffer buffer;
  socket.expires_after(patience);
  error = Await(io, [&](auto done) { http::async_read(stream, buffer, parser, std::move(done)); });
  // A body that breaks off leaves the status, which says whether the request was taken.
  if (error && !parser.is_header_done()) return std::nullopt;
  return HttpAnswer{.status = static_cast<int>(parser.get().result_int()),
                    .body = std::move(parser.get().body())};
}

bool Connect(asio::io_context& io, beast::tcp_stream& stream, const HttpTarget& target,
             std::chrono::nanoseconds patience) {
  Error error;
  const auto found =
      asio::ip::tcp::resolver(io).resolve(target.host, absl::StrCat(target.port), error);
  if (error) return false;
  stream.expires_after(patience);
  return !Await(io, [&](auto done) { stream.async_connect(found, std::move(done)); });
}

std::optional<HttpAnswer> PostWithTls(asio::io_context& io, const HttpTarget& target,
                                      const std::string& json, std::chrono::nanoseconds patience) {
  asio::ssl::context context(asio::ssl::context::tls_client);
  Error error;
  context.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
  if (!error && target.ca.empty()) context.set_default_verify_paths(error);
  if (!error && !target.ca.empty()) context.load_verify_file(target.ca, error);
  if (error) return std::nullopt;
  beast::ssl_stream<beast::tcp_stream> stream(io, context);
  stream.set_verify_mode(asio::ssl::verify_peer, error);
  if (!error) stream.set_verify_callback(asio::ssl::host_name_verification(target.host), error);
  if (error) return std::nullopt;
  if (!IsAddress(target.host)) {
    SSL_set_tlsext_host_name(stream.native_handle(), target.host.c_str());
  }
  if (!Connect(io, stream.next_layer(), target, patience)) return std::nullopt;
  stream.next_layer().expires_after(patience);
  error = Await(io, [&](auto done) {
    stream.async_handshake(asio::ssl::stream_base::client, std::move(done));
  });
  if (error) return std::nullopt;
  return Post(io, stream, target, json, patience);
}

}  // namespace

std::optional<HttpAnswer> PostJson(const HttpTarget& target, const std::string& json,
                                   absl::Duration patience) {
  asio::io_context io(1);
  const std::chrono::nanoseconds time = absl::ToChronoNanoseconds(patience);
  if (target.tls) return PostWithTls(io, target, json, time);
  beast::tcp_stream stream(io);
  if (!Connect(io, stream, target, time)) return std::nullopt;
  return Post(io, stream, target, json, time);
}

}  // namespace ovq::server
