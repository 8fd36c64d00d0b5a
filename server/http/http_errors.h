// Errors in the form that OpenAI's clients read.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "server/http/exchange.h"
#include "server/http/json.h"

namespace ovq::server {

inline constexpr int kHttpClientGone = 499;  // nginx's code, for metrics only

// Maps an error to its HTTP status.
int ToHttpStatus(const absl::Status& status);
// {"type": "error", "error": {"message", "type", "param", "code", "status", "info"}}, as OpenAI's
// and Anthropic's clients read it: "status" is the name of the gRPC code, "info" the
// ovq.v1.ErrorInfo that gRPC clients get, if there is one.
Json ErrorObject(const absl::Status& status);
std::string ErrorBody(const absl::Status& status);
// Adds `retry-after` and `retry-after-ms` if the status has a time, to a 401 its challenge, to a
// 405 the methods that are allowed, and to a refusal of a content coding those that are served:
// none.
void AddErrorHeaders(const absl::Status& status, HttpHeaders& headers);

// The JSON text. Invalid UTF-8, which no text of the server has, becomes U+FFFD. U+0085, U+2028 and
// U+2029 are escaped: clients that split events into lines by Unicode's rules would cut them there.
std::string Dump(const Json& json);

// The message in protobuf's JSON mapping, with the same characters escaped.
std::string MessageJson(const google::protobuf::Message& message);

// InvalidArgument with this code, for a field of OpenAI's that is not served.
absl::Status Unsupported(const std::string& field, const std::string& expected,
                         const char* code = "unsupported_parameter");
// Unimplemented, which becomes 405. allowed: the path's methods, for the header `allow`.
absl::Status MethodNotAllowed(const std::string& allowed);
// NotFound with a code such as "model_not_found", or null.
absl::Status NotFound(const std::string& message, const std::string& field, const char* code);

}  // namespace ovq::server
