#include "server/http/http_errors.h"

#include <google/protobuf/util/json_util.h>

#include <map>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/calls/convert.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

// Payloads of a status: OpenAI's `code` for it, and the methods of a path.
constexpr const char* kCodeUrl = "ovq.http/code";
constexpr const char* kAllowUrl = "ovq.http/allow";
constexpr const char* kContentCoding = "header content-encoding";

absl::Status WithCode(absl::Status status, const char* code) {
  if (code != nullptr) status.SetPayload(kCodeUrl, absl::Cord(code));
  return status;
}

const char* OpenAiErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::optional<std::string> OpenAiErrorCode(const absl::Status& status,
                                           const engine::ErrorFacts& facts) {
  if (const auto code = status.GetPayload(kCodeUrl)) return std::string(*code);
  if (facts.reason) return engine::RejectReasonName(*facts.reason);
  if (absl::IsUnauthenticated(status)) return "invalid_api_key";
  return std::nullopt;
}

// Escapes the line ends beyond ASCII, which JSON has within texts only.
std::string WithoutLineEnds(std::string json) {
  // Most texts have no byte that one begins with.
  if (json.find_first_of("\xc2\xe2") == std::string::npos) return json;
  return absl::StrReplaceAll(
      json, {{"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}});
}

}  // namespace

int ToHttpStatus(const absl::Status& status) {
  using Code = absl::StatusCode;
  static const std::map<Code, int> kStatuses = {{Code::kOk, 200},
                                                {Code::kUnauthenticated, 401},
                                                {Code::kPermissionDenied, 403},
                                                {Code::kNotFound, 404},
                                                {Code::kResourceExhausted, 429},
                                                {Code::kCancelled, kHttpClientGone},
                                                {Code::kUnavailable, 503},
                                                {Code::kDeadlineExceeded, 504}};
  const std::string field = engine::GetErrorFacts(status).field;
  switch (status.code()) {
    case Code::kInvalidArgument:
      return field == "header content-type" || field == kContentCoding ? 415 : 400;
    case Code::kOutOfRange:
      return field == "body" ? 413 : 400;
    case Code::kFailedPrecondition:
      // About a field, the request can never succeed; about a session's state, it may later.
      return field.empty() ? 409 : 400;
    case Code::kUnimplemented:
      return field == "method" ? 405 : 501;
    default:
      break;
  }
  const auto found = kStatuses.find(status.code());
  return found != kStatuses.end() ? found->second : 500;
}

Json ErrorObject(const absl::Status& status) {
  const engine::ErrorFacts facts = engine::GetErrorFacts(status);
  Json error = {{"message", std::string(status.message())},
                {"type", OpenAiErrorType(ToHttpStatus(status))},
                {"param", nullptr},
                {"code", nullptr}};
  if (!facts.field.empty()) error["param"] = facts.field;
  if (const auto code = OpenAiErrorCode(status, facts)) {
    error["code"] = *code;
    error["details"] = {{"error_code", *code}};  // where Anthropic's clients look for it
  }
  error["status"] = absl::StatusCodeToString(status.code());
  if (!facts.empty()) {
    v1::ErrorInfo info;
    Fill(facts, info);
    error["info"] = Json::parse(MessageJson(info), nullptr, /*allow_exceptions=*/false);
  }
  return {{"type", "error"}, {"error", std::move(error)}};
}

std::string ErrorBody(const absl::Status& status) { return Dump(ErrorObject(status)); }

void AddErrorHeaders(const absl::Status& status, HttpHeaders& headers) {
  if (absl::IsUnauthenticated(status)) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (const auto allow = status.GetPayload(kAllowUrl)) {
    headers.emplace_back("Allow", std::string(*allow));
  }
  const engine::ErrorFacts facts = engine::GetErrorFacts(status);
  if (facts.field == kContentCoding) headers.emplace_back("Accept-Encoding", "identity");
  const std::optional<absl::Duration> wait = facts.retry_after;
  if (!wait) return;
  const int64_t ms = absl::ToInt64Milliseconds(*wait);
  headers.emplace_back("Retry-After", absl::StrCat((ms + 999) / 1000));
  headers.emplace_back("Retry-After-Ms", absl::StrCat(ms));
}

std::string Dump(const Json& json) {
  return WithoutLineEnds(
      json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace));
}

std::string MessageJson(const google::protobuf::Message& message) {
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(
      message, &json);  // fails only for Any messages of unknown types
  return WithoutLineEnds(std::move(json));
}

absl::Status Unsupported(const std::string& field, const std::string& expected, const char* code) {
  return WithCode(engine::WithFacts(absl::InvalidArgumentError(absl::StrCat(
                                        field, ": not served here; expected ", expected)),
                                    {.field = field}),
                  code);
}

absl::Status MethodNotAllowed(const std::string& allowed) {
  absl::Status status = absl::UnimplementedError(absl::StrCat("method: expected ", allowed));
  status.SetPayload(kAllowUrl, absl::Cord(allowed));
  return engine::WithFacts(std::move(status), {.field = "method"});
}

absl::Status NotFound(const std::string& message, const std::string& field, const char* code) {
  return WithCode(engine::WithFacts(absl::NotFoundError(message), {.field = field}), code);
}

}  // namespace ovq::server
