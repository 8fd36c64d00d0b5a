// Turns messages of a conversation into the text of a prompt, by the model's chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/engine.h"

namespace ovq::server {

// The place of a prompt: at the start of a session, or after its last token.
struct PromptPlace {
  bool at_start = true;
  bool in_session = false;    // the sequence outlives the call
  bool keeps_tokens = false;  // so the session can go back
  std::optional<int32_t> last_token = {};
  // An error if there is no such session, or if nobody can say; a text cannot follow it then.
  absl::Status session = {};
};
// The place for a session. May block (SessionOperations::Get).
PromptPlace FindPromptPlace(engine::Engine& engine, const std::string& session_id,
                            const std::string& tenant);

struct PromptText {
  std::string text;
  std::string begun = {};   // the end of the text that is part of the model's answer
  std::string opened = {};  // the end of the text that is there only because it opens an answer
  // The text is of the whole conversation, whose known messages the template writes differently
  // now: the session must go back to where its tokens differ.
  bool rewrites = false;
};
// The text of the conversation after its first `known` messages; `opened` at the start of a
// sequence only. `path`: the name of its field. InvalidArgument: a field beyond its limit, tools
// that are not a JSON list, or messages that the template refuses or cannot render within its
// bounds. FailedPrecondition: the model has no template; `known` does not fit the place; or the
// template renders the known messages differently within the whole conversation, and the session
// keeps no tokens to go back to them.
absl::StatusOr<PromptText> NewText(const v1::Conversation& conversation, const std::string& path,
                                   const PromptPlace& place, const engine::Engine& engine);

// The common text of conversations with the same system messages: the rendered text before the
// first message that is neither "system" nor "developer", as far as it does not depend on that
// message. Empty if the template refuses it.
std::string SystemText(const v1::Conversation& conversation, const engine::Engine& engine);

}  // namespace ovq::server
