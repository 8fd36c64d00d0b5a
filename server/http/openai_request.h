// Maps requests of OpenAI's completions, chat completions and responses, with vLLM's additional
// fields, to a GenerateRequest. docs/http.md lists every field.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/http/body_fields.h"
#include "server/http/json.h"

namespace ovq::server {

// Token limits of requests without one. For completions OpenAI's default; for chats, where OpenAI's
// is the rest of the context window, the length of a long answer.
inline constexpr uint32_t kDefaultCompletionTokens = 16;
inline constexpr uint32_t kDefaultChatTokens = 4096;

enum class OpenAiApi : uint8_t { kCompletions, kChat };

struct OpenAiRequest {
  OpenAiApi api = OpenAiApi::kCompletions;
  v1::GenerateRequest message;
  bool stream = false;
  bool include_usage = false;     // in a last chunk
  bool continuous_usage = false;  // in every chunk
};

// `model`: name of the served model.
absl::StatusOr<OpenAiRequest> ReadCompletion(const Json& body, const std::string& model);
absl::StatusOr<OpenAiRequest> ReadChat(const Json& body, const std::string& model);

// /v1/responses. `message`: its conversation has the new messages only, instructions and input.
struct ResponseRequest : OpenAiRequest {
  std::optional<std::string> previous;  // the session of previous_response_id
  std::optional<std::string> instructions;
  bool store = true;
  Json shown;  // fields of the request that the response repeats
};
// NotFound with code previous_response_not_found for text that cannot be a response's id.
absl::StatusOr<ResponseRequest> ReadResponse(const Json& body, const std::string& model);

// The id of a response is "resp_" and its session's id, whose KEY balancers can route by.
std::string ResponseId(const std::string& session_id);
// Unset for text that cannot be the id of a stored response.
std::optional<std::string> ResponseSessionId(const std::string& response_id);
absl::Status NoResponse(const std::string& field, const char* code);  // NotFound

// Reads `model`: NotFound with code model_not_found for another than the served one.
void ReadModel(BodyFields& fields, const std::string& model);
// Reads a list of {role, content}, such as `messages`.
void ReadMessages(BodyFields& fields, const char* name, const Json& list,
                  v1::Conversation& to);

// An engine's error with the request's names of fields: "sampling.top_p" becomes "top_p".
absl::Status ToOpenAiError(const absl::Status& status, OpenAiApi api);

}  // namespace ovq::server
