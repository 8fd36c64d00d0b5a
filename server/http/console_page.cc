#include "server/http/console_page.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "server/http/console/files.h"

namespace ovq::server {
namespace {

// The page may load from and talk to this server only, and may not be framed.
constexpr char kPolicy[] =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'";

// Whether the client has this version, by If-None-Match of RFC 9110. A tag that a proxy made weak
// counts, too.
bool Has(const HttpRequest& request, std::string_view etag) {
  return std::ranges::any_of(request.headers, [etag](const auto& header) {
    const auto& [name, value] = header;
    return name == "if-none-match" && (value == "*" || value.find(etag) != std::string::npos);
  });
}

}  // namespace

std::optional<HttpReply> ConsoleReply(const HttpRequest& request) {
  const std::string_view target = request.target;
  const std::string_view path = target.substr(0, target.find('?'));
  if (!path.starts_with('/')) return std::nullopt;
  const std::string_view name = path == "/" ? "index.html" : path.substr(1);
  const std::span<const ConsoleFile> files = ConsoleFiles();
  const auto file = std::ranges::find(files, name, &ConsoleFile::name);
  if (file == files.end()) return std::nullopt;
  // Browsers ask again at every visit, so files of two server versions never mix.
  HttpReply reply = {.content_type = std::string(file->media_type),
                     .headers = {{"ETag", std::string(file->etag)},
                                 {"Cache-Control", "no-cache"},
                                 {"Content-Security-Policy", kPolicy},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Referrer-Policy", "no-referrer"}}};
  if (Has(request, file->etag)) {
    reply.status = 304;
  } else {
    reply.body = std::string(file->bytes);
  }
  return reply;
}

}  // namespace ovq::server
