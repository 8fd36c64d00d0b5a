#include "server/http_client/client_connection.h"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/net/client_stream.h"

namespace ovq::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Error = boost::system::error_code;
using Parser = http::response_parser<http::string_body>;

constexpr size_t kReadBytes = size_t{64} << 10;

}  // namespace

std::string HttpOrigin::HostHeader() const {
  const std::string whole = HostPort(host, port);
  const bool usual = port == (tls ? 443 : 80);
  return usual ? whole.substr(0, whole.rfind(':')) : whole;
}

std::string HttpOrigin::Url() const {
  return absl::StrCat(tls ? "https://" : "http://", HostHeader());
}

struct ClientConnection::Stream {
  std::unique_ptr<ClientStream> bytes;
  beast::flat_buffer buffer = {};  // what was read and is of no response yet

  // Reads one response, of which each piece may take `patience`.
  absl::Status Read(absl::Duration patience, size_t max_body, Parser& parser) {
    parser.body_limit(max_body);
    const auto end = std::chrono::steady_clock::now() +
                     absl::ToChronoNanoseconds(patience + (max_body >> 20) * absl::Seconds(1));
    Error error = http::error::need_more;
    for (;;) {
      if (buffer.size() > 0) buffer.consume(parser.put(buffer.data(), error));
      if (parser.is_done()) return absl::OkStatus();
      if (error && error != http::error::need_more) return absl::UnavailableError(error.message());
      if (!error && buffer.size() > 0) continue;  // the header was read, the body comes next
      if (std::chrono::steady_clock::now() > end) {
        return absl::UnavailableError("the response took too long");
      }
      const auto room = buffer.prepare(kReadBytes);
      ASSIGN_OR_RETURN(const size_t n,
                       bytes->ReadSome(static_cast<char*>(room.data()), room.size(), patience));
      if (n == 0) {
        error = http::error::end_of_stream;
        if (parser.got_some()) parser.put_eof(error);
        return error ? absl::UnavailableError(error.message()) : absl::OkStatus();
      }
      buffer.commit(n);
    }
  }
};

ClientConnection::ClientConnection(HttpOrigin origin) : origin_(std::move(origin)) {}
ClientConnection::~ClientConnection() = default;

bool ClientConnection::connected() const {
  // Between responses a server sends nothing, unless it ends the connection.
  return stream_ != nullptr && stream_->bytes->idle();
}

absl::Status ClientConnection::Broken(const absl::Status& why) {
  stream_.reset();
  return absl::UnavailableError(absl::StrCat(origin_.Url(), ": ", why.message()));
}

absl::Status ClientConnection::Connect(absl::Duration patience) {
  PeerAddress peer = {.host = origin_.host, .port = origin_.port};
  if (origin_.tls) peer.tls = TlsTrust{.ca = origin_.ca};
  absl::StatusOr<std::unique_ptr<ClientStream>> opened = ClientStream::Open(peer, patience);
  if (!opened.ok()) return Broken(opened.status());
  stream_ = std::make_unique<Stream>(Stream{*std::move(opened)});
  return absl::OkStatus();
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
  std::ostringstream header;
  header << out.base();
  sent_ = true;
  // A server that refuses a request may close the connection before it has read all of it.
  const absl::Status written = stream.bytes->Write({header.str(), request.body}, patience);
  absl::Status read;
  std::optional<Parser> parser;
  do {
    parser.emplace();
    read = stream.Read(patience, max_body, *parser);
    if (!read.ok() && !parser->is_header_done()) return Broken(written.ok() ? read : written);
  } while (read.ok() && parser->get().result_int() / 100 == 1);  // the response is still to come
  ClientResponse response{.status = static_cast<int>(parser->get().result_int()),
                          .whole = read.ok(),
                          .sized = !parser->need_eof()};
  for (const auto& field : parser->get()) {
    const auto name = field.name_string();
    response.headers[absl::AsciiStrToLower({name.data(), name.size()})] =
        std::string(field.value());
  }
  response.body = std::move(parser->get().body());
  // Bytes that no request asked for must not be taken for the next response.
  const bool surplus = stream.buffer.size() > 0;
  if (!read.ok() || !written.ok() || surplus || !parser->get().keep_alive()) stream_.reset();
  return response;
}

}  // namespace ovq::server
