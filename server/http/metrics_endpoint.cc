#include "server/http/metrics_endpoint.h"

#include <algorithm>
#include <boost/beast/zlib/deflate_stream.hpp>
#include <boost/crc.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ovq::server {
namespace {

constexpr const char* kPath = "/metrics";
// Limits: scrapers are few, and a GET has no body.
constexpr int kMaxConnections = 64;
constexpr size_t kMaxRequestBytes = size_t{64} << 10;

void AppendLittleEndian(uint32_t value, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

HttpReply TextReply(int status, std::string text) {
  return {.status = status, .content_type = "text/plain; charset=utf-8", .body = std::move(text)};
}

// Whether an entry of accept-encoding, "gzip" or "gzip;q=0.5", names gzip. With q=0 it is refused.
bool NamesGzip(absl::string_view entry) {
  const std::vector<absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits(';', 1));
  if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts[0]), "gzip")) return false;
  if (parts.size() == 1) return true;
  absl::string_view weight = absl::StripAsciiWhitespace(parts[1]);
  double quality = 0;
  return absl::ConsumePrefix(&weight, "q=") && absl::SimpleAtod(weight, &quality) && quality > 0;
}

bool AcceptsGzip(const HttpRequest& request) {
  return std::ranges::any_of(request.headers, [](const auto& header) {
    const std::vector<absl::string_view> entries = absl::StrSplit(header.second, ',');
    return header.first == "accept-encoding" && std::ranges::any_of(entries, NamesGzip);
  });
}

HttpReply Answer(const Exchange& exchange, const HttpRequest& request, Metrics& metrics) {
  if (!exchange.fault().ok()) {
    return TextReply(400, std::string(exchange.fault().message()) + "\n");
  }
  if (request.target.substr(0, request.target.find('?')) != kPath) {
    return TextReply(404, "expected /metrics\n");
  }
  if (request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = TextReply(405, "expected GET\n");
    reply.headers.emplace_back("Allow", "GET, HEAD");
    return reply;
  }
  HttpReply reply = TextReply(200, metrics.Text());
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  if (AcceptsGzip(request)) {
    reply.headers.emplace_back("Content-Encoding", "gzip");
    reply.body = Gzip(reply.body);
  }
  return reply;
}

}  // namespace

std::string Gzip(const std::string& text) {
  namespace zlib = boost::beast::zlib;
  // Header: deflate, no flags, no time, unknown system.
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  const size_t head = out.size();
  zlib::deflate_stream stream;
  out.resize(head + stream.upper_bound(text.size()));
  zlib::z_params io;
  io.next_in = text.data();
  io.avail_in = text.size();
  io.next_out = out.data() + head;
  io.avail_out = out.size() - head;
  boost::beast::error_code end_of_stream;
  stream.write(io, zlib::Flush::finish, end_of_stream);
  out.resize(out.size() - io.avail_out);
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  AppendLittleEndian(crc.checksum(), out);
  AppendLittleEndian(static_cast<uint32_t>(text.size()), out);
  return out;
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& address,
                                                         Metrics& metrics) {
  const HttpOptions options = {
      .address = address,
      .flag = "--metrics-address",
      .max_body_bytes = kMaxRequestBytes,
      .max_connections = kMaxConnections,
      .memory = std::make_shared<ByteBudget>(kMaxConnections * kMaxRequestBytes)};
  // A page takes some milliseconds to make, so the server's own threads make it.
  return HttpServer::Start(options, {}, [&metrics](std::shared_ptr<Exchange> exchange) {
    const auto start = std::chrono::steady_clock::now();
    HttpReply reply = Answer(*exchange, exchange->request(), metrics);
    if (reply.status == 200) {
      metrics.Scraped(reply.body.size(),
                      absl::FromChrono(std::chrono::steady_clock::now() - start));
    }
    exchange->Reply(std::move(reply));
  });
}

}  // namespace ovq::server
