// Requests of OpenAI's /v1/responses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"

namespace ovq {

struct ResponseRequest {
  // Its conversation is what is new: instructions, if there are any, and the input.
  v1::GenerateRequest message;
  std::optional<std::string> previous;  // the session of previous_response_id
  std::optional<std::string> instructions;
  bool store = true;
  bool stream = false;
  nlohmann::json shown;  // what the response says of its request
};

// `model`: the one that is served. NotFound, previous_response_not_found, for what cannot be one's
// id.
absl::StatusOr<ResponseRequest> ReadResponse(const nlohmann::json& body, const std::string& model);

// The id of a response is its session's, behind "resp_": a KEY in it tells balancers where it is.
std::string ResponseId(const std::string& session_id);
// Unset for what is no id of a stored response.
std::optional<std::string> ResponseSessionId(const std::string& response_id);
absl::Status NoResponse(const std::string& field, const char* code);  // NotFound

}  // namespace ovq
