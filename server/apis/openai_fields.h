// Reads the fields that requests of several of OpenAI's and Anthropic's calls share, with vLLM's
// additional ones. docs/http.md lists every field. Errors go to the BodyFields.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/common/limits.h"
#include "server/http/body_fields.h"
#include "server/http/json.h"

namespace ovq::server {

// Token limits of requests without one. For completions OpenAI's default; for chats, where OpenAI's
// is the rest of the context window, the length of a long answer.
inline constexpr uint32_t kDefaultCompletionTokens = 16;
inline constexpr uint32_t kDefaultChatTokens = 4096;
inline constexpr int64_t kMaxPrompts = 256;  // of one completion

enum class OpenAiApi : uint8_t { kCompletions, kChat, kResponses, kMessages };

// Where a message of a conversation stands in a request.
struct MessagePlace {
  std::string field;                    // such as "input[3]" or "instructions"
  std::vector<std::string> calls = {};  // of each of its tool calls
};

struct OpenAiRequest {
  OpenAiApi api = OpenAiApi::kCompletions;
  v1::GenerateRequest message;
  // The prompts of a completion, at least one: `message` is sent with each. Choice i of prompt p
  // has index n p + i.
  std::vector<v1::Prompt> prompts = {};
  bool echo = false;  // a choice's text begins with its prompt
  bool stream = false;
  bool include_usage = false;     // in a last chunk
  bool continuous_usage = false;  // in every chunk
  std::string session_key = {};   // prompt_cache_key, by which balancers may route; may be empty
  std::string constraint_field = {};  // the field that asks for the message's constraint
  // They are of the messages of `message`'s conversation; empty where these are those of
  // "messages".
  std::vector<MessagePlace> places = {};

  // Choices of the answer for a prompt; the engine refuses more than kMaxCompletions.
  size_t choices() const {
    return std::min<size_t>(message.sampling().n(), engine::kMaxCompletions);
  }
};

using ModelNames = std::vector<std::string>;  // of the served model, of which every one will do

// NotFound with code model_not_found for another name.
absl::Status CheckModel(const std::string& asked, const ModelNames& model);
void ReadModel(BodyFields& fields, const ModelNames& model);     // checks `model` if it is there
void ReadSampling(BodyFields& fields, v1::GenerateRequest& to);  // and when to stop
void ReadStopTexts(BodyFields& fields, const char* name, v1::StopConditions& to);
void ReadStream(BodyFields& fields, OpenAiRequest& to);
void ReadVariant(BodyFields& fields, v1::GenerateRequest& to);  // memory, max_centroids
void RefuseVllmFields(BodyFields& fields);
// Reads prompt_cache_key, and accepts the fields that change no answer of this server: ids of
// users, hints for caches, options of OpenAI's service.
void SkipHints(BodyFields& fields, OpenAiRequest& to);

// The error with `theirs` in place of `ours`, with which the name of its field and its message
// begin. An error of another field stays as it is.
absl::Status RenameField(const absl::Status& status, absl::string_view ours,
                         absl::string_view theirs, OpenAiApi api = OpenAiApi::kCompletions);
// A request's own names of what the engine has names for.
struct FieldNames {
  OpenAiApi api = OpenAiApi::kCompletions;
  std::string constraint = {};              // OpenAiRequest::constraint_field
  std::vector<MessagePlace> messages = {};  // OpenAiRequest::places
  std::string prompt = "prompt";
};
inline FieldNames CallerNames(const OpenAiRequest& request) {
  return {request.api, request.constraint_field, request.places};
}
// An engine's error with the request's names of fields: "sampling.top_p" becomes "top_p".
absl::Status ToOpenAiError(const absl::Status& status, const FieldNames& names);

}  // namespace ovq::server
