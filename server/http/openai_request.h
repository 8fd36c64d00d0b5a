// Maps requests of OpenAI's completions and chat completions, with vLLM's additional fields, to a
// GenerateRequest. docs/http.md lists every field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/http/body_fields.h"

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
absl::StatusOr<OpenAiRequest> ReadCompletion(const nlohmann::json& body, const std::string& model);
absl::StatusOr<OpenAiRequest> ReadChat(const nlohmann::json& body, const std::string& model);

// --- parts that other requests of OpenAI's share ---

// Reads `model`: NotFound with code model_not_found for another than the served one.
void ReadModel(BodyFields& fields, const std::string& model);
// Reads temperature, penalties, seed, stop and the like.
void ReadSampling(BodyFields& fields, v1::GenerateRequest& to);
// Reads our own fields: the cache policy and its size.
void ReadVariant(BodyFields& fields, v1::GenerateRequest& to);
// Reads a list of {role, content}, such as `messages`.
void ReadMessages(BodyFields& fields, const char* name, const nlohmann::json& list,
                  v1::Conversation& to);
// Reads a text, or a list of parts that are all text.
std::string ReadContent(BodyFields& fields, const std::string& name, const nlohmann::json& content);

// An engine's error with the request's names of fields: "sampling.top_p" becomes "top_p".
absl::Status ToOpenAiError(const absl::Status& status, OpenAiApi api);

}  // namespace ovq::server
