// Requests of OpenAI's completions and chat completions, with the fields that vLLM adds, as a
// GenerateRequest. docs/http.md lists every field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/http/body_fields.h"

namespace ovq {

// Where a request names none: OpenAI's own for completions; for chats, whose own is the rest of a
// context that ends, what a long answer takes.
inline constexpr uint32_t kDefaultCompletionTokens = 16;
inline constexpr uint32_t kDefaultChatTokens = 4096;

enum class OpenAiApi : uint8_t { kCompletions, kChat };

struct OpenAiRequest {
  OpenAiApi api = OpenAiApi::kCompletions;
  v1::GenerateRequest message;
  bool stream = false;
  bool include_usage = false;     // a last chunk with it
  bool continuous_usage = false;  // every chunk
};

// `model`: the one that is served.
absl::StatusOr<OpenAiRequest> ReadCompletion(const nlohmann::json& body, const std::string& model);
absl::StatusOr<OpenAiRequest> ReadChat(const nlohmann::json& body, const std::string& model);

// --- parts, for other requests of theirs ---

// NotFound, model_not_found, for another than the served one.
void ReadModel(BodyFields& fields, const std::string& model);
// Temperature, penalties, seed, stop and the like.
void ReadSampling(BodyFields& fields, v1::GenerateRequest& to);
// Ours beside theirs: which of the server's memories, and how large.
void ReadVariant(BodyFields& fields, v1::GenerateRequest& to);
// `messages` or the like: a list of {role, content}.
void ReadMessages(BodyFields& fields, const char* name, const nlohmann::json& list,
                  v1::Conversation& to);
// A text, or a list of parts that are all text.
std::string ReadContent(BodyFields& fields, const std::string& name, const nlohmann::json& content);

// An error of the engine's in the words of the request: "sampling.top_p" is "top_p".
absl::Status ToOpenAiError(const absl::Status& status, OpenAiApi api);

}  // namespace ovq
