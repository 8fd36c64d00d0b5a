// Maps requests of OpenAI's completions and chat completions, with vLLM's additional fields, to a
// GenerateRequest. docs/http.md lists every field.
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

enum class OpenAiApi : uint8_t { kCompletions, kChat, kResponses };

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

// An engine's error with the request's names of fields: "sampling.top_p" becomes "top_p".
absl::Status ToOpenAiError(const absl::Status& status, OpenAiApi api);

}  // namespace ovq::server
