#include "server/http_client/http_post.h"

#include <cstdint>
#include <utility>

#include "server/http_client/client_connection.h"

namespace ovq::server {
namespace {

constexpr uint64_t kMaxAnswerBody = uint64_t{1} << 20;

}  // namespace

std::optional<HttpAnswer> PostJson(const HttpTarget& target, const std::string& json,
                                   absl::Duration patience) {
  ClientConnection connection(
      {.tls = target.tls, .host = target.host, .port = target.port, .ca = target.ca});
  // A body that breaks off leaves the status, which says whether the request was taken.
  absl::StatusOr<ClientResponse> response = connection.Exchange(
      {.method = "POST",
       .target = target.path,
       .headers = {{"Content-Type", "application/json"}, {"Connection", "close"}},
       .body = json},
      patience, kMaxAnswerBody);
  if (!response.ok()) return std::nullopt;
  return HttpAnswer{.status = response->status, .body = std::move(response->body)};
}

}  // namespace ovq::server
