#include "server/http/connection_host.h"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/status.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/engine/common/error_facts.h"

namespace ovq {

std::string ReplyHead(const HttpReply& reply, const std::string& framing, bool keep_alive) {
  const auto status = static_cast<boost::beast::http::status>(reply.status);
  std::string head = absl::StrCat("HTTP/1.1 ", reply.status, " ",
                                  std::string(boost::beast::http::obsolete_reason(status)), "\r\n");
  if (!reply.content_type.empty()) {
    absl::StrAppend(&head, "Content-Type: ", reply.content_type, "\r\n");
  }
  for (const auto& [name, value] : reply.headers) {
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&head, framing, keep_alive ? "" : "Connection: close\r\n", "\r\n");
  return head;
}

HttpRequest ToHttpRequest(const HttpHeader& header) {
  HttpRequest request;
  request.method = std::string(header.method_string());
  request.target = std::string(header.target());
  for (const auto& field : header) {
    request.headers.emplace_back(absl::AsciiStrToLower(absl::string_view(
                                     field.name_string().data(), field.name_string().size())),
                                 std::string(field.value()));
  }
  return request;
}

// Beast's parser takes a request with an unknown transfer coding for one without a body, and the
// bytes after it for the next request. A proxy in front may not, so such requests are refused.
absl::Status CheckFraming(const HttpHeader& header) {
  using Field = boost::beast::http::field;
  const size_t codings = header.count(Field::transfer_encoding);
  if (codings == 0 ||
      (codings == 1 && boost::beast::iequals(header[Field::transfer_encoding], "chunked"))) {
    return absl::OkStatus();
  }
  return BadHeader("expected transfer-encoding chunked, or none");
}

absl::Status BodyTooLarge(size_t most) {
  return WithFacts(absl::OutOfRangeError(absl::StrCat("body: expected at most ", most,
                                                      " bytes (--max-message-bytes)")),
                   {.field = "body"});
}

absl::Status BadHeader(const std::string& why) {
  return WithFacts(absl::InvalidArgumentError(absl::StrCat("header of the request: ", why)),
                   {.field = "header"});
}

}  // namespace ovq
