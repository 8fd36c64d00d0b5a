// Maps requests of OpenAI's /v1/responses to a GenerateRequest.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/apis/openai_fields.h"

namespace ovq::server {

// `message`: its conversation has the new messages only, instructions and input.
struct ResponseRequest : OpenAiRequest {
  std::optional<std::string> previous;  // the session of previous_response_id
  std::optional<std::string> instructions;
  bool store = true;
  bool summarizes = false;         // reasoning is shown as its summary
  bool carries_reasoning = false;  // in encrypted_content
  std::string input;               // as it came, as JSON
  Json shown;                      // fields of the request that the response repeats
};
// Begins the encrypted_content of an item; the text of its reasoning follows.
inline constexpr std::string_view kCarriedReasoning = "text:";
// Finds an output item of a stored response by its id.
using FindItem = std::function<absl::StatusOr<Json>(const std::string& id)>;
// NotFound with code previous_response_not_found for text that cannot be a response's id.
absl::StatusOr<ResponseRequest> ReadResponse(const Json& body, const ModelNames& model,
                                             const FindItem& find);

// The id of a response is "resp_" and its session's id, whose KEY balancers can route by. The id of
// an item of it is a prefix such as "msg_", the session's id, "_" and the item's place in the
// output.
std::string ResponseId(const std::string& session_id);
// Unset for text that cannot be the id of a stored response.
std::optional<std::string> ResponseSessionId(const std::string& response_id);
struct ItemPlace {
  std::string session_id;
  size_t index = 0;
};
std::string ItemId(const char* prefix, const ItemPlace& place);
std::optional<ItemPlace> FindItemPlace(const std::string& item_id);
absl::Status NoResponse(const std::string& field, const char* code);  // NotFound

}  // namespace ovq::server
