// Errors as OpenAI's clients read them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "server/http/exchange.h"

namespace ovq {

inline constexpr int kHttpClientGone = 499;  // as nginx counts them; nobody sees it

// The project's one mapping of errors to HTTP.
int ToHttpStatus(const absl::Status& status);
// {"error": {"message", "type", "param", "code"}}, and what gRPC's clients get: its name of the
// code as "status", and where there is something to tell, ovq.v1.ErrorInfo as "info".
nlohmann::json ErrorObject(const absl::Status& status);
std::string ErrorBody(const absl::Status& status);
// `retry-after` and `retry-after-ms` where the status knows a time, what a 401 must say.
void AddErrorHeaders(const absl::Status& status, HttpHeaders& headers);

// JSON of what is valid UTF-8, as all texts of the server are; what is not gets U+FFFD.
std::string Dump(const nlohmann::json& json);

// InvalidArgument, code unsupported_parameter: a field of theirs that this server does not serve.
absl::Status Unsupported(const std::string& field, const std::string& expected);
// Unimplemented, of a path that has other methods: 405.
absl::Status MethodNotAllowed(const std::string& allowed);
// NotFound with this code, as "model_not_found", or null.
absl::Status NotFound(const std::string& message, const std::string& field, const char* code);

}  // namespace ovq
