// Conversations: messages to the text that a session has yet to read, by the model's chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/engine.h"

namespace ovq {

// Where a prompt goes on: in a new session, or behind the tokens of one.
struct PromptPlace {
  bool at_start = true;
  std::optional<int32_t> last_token = {};
};
// At the start also if there is no such session, which the engine says once it gets the request.
PromptPlace FindPromptPlace(Engine& engine, const std::string& session_id,
                            const std::string& tenant);

// The text behind the `known` messages of the conversation. `path` is the field's. InvalidArgument:
// a field beyond its limit, tools that are no JSON list, what the template refuses or cannot render
// within its bounds. FailedPrecondition: no template; a `known` that does not fit the place; a
// template that writes the known messages differently from what the session has read.
absl::StatusOr<std::string> NewText(const v1::Conversation& conversation, const std::string& path,
                                    const PromptPlace& place, const Engine& engine);

// The text before the first message that is neither "system" nor "developer", as far as it does not
// depend on what that one says: what conversations of one kind have in common. Empty where the
// template refuses it.
std::string SystemText(const v1::Conversation& conversation, const Engine& engine);

}  // namespace ovq
