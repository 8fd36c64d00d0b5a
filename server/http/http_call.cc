#include "server/http/http_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/calls/convert.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/session.h"
#include "server/http/http_errors.h"

namespace ovq::server {

HttpCall::HttpCall(ServiceContext& services, const char* route, std::shared_ptr<Exchange> exchange,
                   HttpHeaders headers, CallRecord::Shown shown)
    : exchange_(std::move(exchange)),
      route_(route),
      headers_(std::move(headers)),
      record_(services, route, *this, std::move(exchange_->request().memory), shown) {
  const std::string_view target = request().target;
  const size_t mark = target.find('?');
  path_ = target.substr(0, mark);
  if (mark != std::string_view::npos) query_ = target.substr(mark + 1);
  // Anthropic's clients name their token otherwise.
  const std::optional<std::string> key = Value("x-api-key");
  if (key && !Value("authorization")) AddHeader("authorization", absl::StrCat("Bearer ", *key));
  exchange_->OnGone([cancel = record_.cancel()] { cancel->Cancel(); });
}

std::vector<std::string> HttpCall::Values(const char* name) const {
  std::vector<std::string> values;
  for (const auto& [key, value] : request().headers) {
    if (key == name) values.push_back(value);
  }
  return values;
}

std::string DecodeUrl(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 2);
    if (plus_is_space && text[i] == '+') {
      decoded.push_back(' ');
    } else if (text[i] == '%' && digits.size() == 2 && absl::ascii_isxdigit(digits[0]) &&
               absl::ascii_isxdigit(digits[1])) {
      decoded += absl::HexStringToBytes(AbslView(digits));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

namespace {

// Calls visit(name, value) with each parameter of a query, its name decoded, until that is true.
template <class Visit>
void VisitQuery(std::string_view query, Visit visit) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view value = pair.substr(std::min(equals + 1, pair.size()));
    if (!pair.empty() && visit(DecodeUrl(pair.substr(0, equals)), value)) return;
  }
}

}  // namespace

std::optional<std::string> HttpCall::Query(std::string_view name) const {
  std::optional<std::string> found;
  VisitQuery(query_, [&](const std::string& own, std::string_view value) {
    if (own == name) found = DecodeUrl(value);
    return found.has_value();
  });
  return found;
}

absl::Status HttpCall::CheckQuery(std::span<const char* const> names) const {
  const auto known = names.first(std::ranges::find(names, nullptr) - names.begin());
  absl::Status status;
  VisitQuery(query_, [&](const std::string& own, std::string_view) {
    if (std::ranges::find(known, own) != known.end()) return false;
    const std::string expected =
        known.empty() ? "no parameter" : absl::StrCat("one of ", absl::StrJoin(known, ", "));
    status = engine::BadField("query", expected, Quoted(own));
    return true;
  });
  return status;
}

absl::StatusOr<std::optional<uint32_t>> HttpCall::QueryNumber(const char* name) const {
  const std::optional<std::string> text = Query(name);
  uint32_t number = 0;
  if (!text || text->empty()) return std::nullopt;
  if (absl::SimpleAtoi(*text, &number)) return number;
  return engine::BadField(name, "a whole number", Quoted(*text));
}

void HttpCall::SetSessionKey(const std::string& text) {
  if (FindSessionKey(*this) || text.empty()) return;
  AddHeader(kSessionHeader, MakeSessionKey(text));
}

HttpHeaders HttpCall::AnswerHeaders() {
  HttpHeaders headers = record_.AnswerHeaders();
  headers.insert(headers.end(), headers_.begin(), headers_.end());
  // The session's key or the call's, for balancers to route by.
  const std::string& session = record_.summary().session_id;
  const size_t dot = session.find('.');
  std::optional<std::string> key = FindSessionKey(*this);
  if (dot != std::string::npos) key = session.substr(0, dot);
  if (key && engine::IsSessionKey(*key)) headers.emplace_back(kSessionHeader, *std::move(key));
  // Anthropic's clients know the id of a request by this name.
  if (std::string_view(route_).starts_with("/v1/messages")) {
    headers.emplace_back("request-id", headers.front().second);
  }
  return headers;
}

void HttpCall::End(int http_status, const absl::Status& status, size_t answer_bytes) {
  const absl::Status seen = record_.Seen(status);
  services().metrics.HttpFinished(route_, cancelled() ? kHttpClientGone : http_status,
                                  record_.age());
  (void)std::exchange(exchange_->request().body, {});  // an assignment would keep its memory
  record_.End(seen, answer_bytes);
  exchange_->request().memory = record_.ReleaseMemory();
}

void HttpCall::Reply(int status, std::string body, std::string content_type) {
  Reply({.status = status, .content_type = std::move(content_type), .body = std::move(body)});
}

void HttpCall::Reply(HttpReply reply) {
  for (auto& header : AnswerHeaders()) reply.headers.push_back(std::move(header));
  End(reply.status, absl::OkStatus(), reply.body.size());
  exchange_->Reply(std::move(reply));
}

void HttpCall::Fail(const absl::Status& status) {
  HttpReply reply = {
      .status = ToHttpStatus(status), .headers = AnswerHeaders(), .body = ErrorBody(status)};
  AddErrorHeaders(status, reply.headers);
  End(reply.status, status, reply.body.size());
  exchange_->Reply(std::move(reply));
}

void HttpCall::Stream(Events events) {
  HttpReply head = {.content_type = "text/event-stream; charset=utf-8", .headers = AnswerHeaders()};
  head.headers.emplace_back("Cache-Control", "no-store");
  head.headers.emplace_back("X-Accel-Buffering", "no");
  services().metrics.http_streams.Increment();
  exchange_->Stream(std::move(head),
                    [self = shared_from_this(), events = std::move(events)](std::string& out) {
                      absl::Status status;
                      if (events(out, status)) return true;
                      self->services().metrics.http_streams.Decrement();
                      self->End(200, status, out.size());
                      return false;
                    });
}

}  // namespace ovq::server
