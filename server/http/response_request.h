// Requests of OpenAI's /v1/responses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"

namespace ovq::server {

struct ResponseRequest {
  // Its conversation has the new messages only: instructions, if any, and the input.
  v1::GenerateRequest message;
  std::optional<std::string> previous;  // the session of previous_response_id
  std::optional<std::string> instructions;
  bool store = true;
  bool stream = false;
  nlohmann::json shown;  // fields of the request that the response repeats
};

// `model`: name of the served model. NotFound with code previous_response_not_found for text that
// cannot be a response's id.
absl::StatusOr<ResponseRequest> ReadResponse(const nlohmann::json& body, const std::string& model);

// The id of a response is "resp_" and its session's id, whose KEY balancers can route by.
std::string ResponseId(const std::string& session_id);
// Unset for text that cannot be the id of a stored response.
std::optional<std::string> ResponseSessionId(const std::string& response_id);
absl::Status NoResponse(const std::string& field, const char* code);  // NotFound

}  // namespace ovq::server
