// ChatFormat: a model folder's chat template with the special tokens that the template may name.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "model/chat_template/chat_template.h"

namespace ovq::jinja {

struct ChatMessage {
  std::string role, content;
};

// Immutable; any thread.
class ChatFormat {
 public:
  // Loads the template of chat_template.jinja, else `chat_template` of tokenizer_config.json: a
  // text, or a list of named texts, of which "default" is used, or "tool_use" if there are tools.
  // Null if the folder has neither. Errors name the file if it cannot be read or its template
  // cannot be parsed.
  static absl::StatusOr<std::unique_ptr<ChatFormat>> Load(const std::string& folder);

  // Renders a conversation. `tools_json`: a list of callable tools, empty for none. `opens_answer`:
  // ends the text with the beginning of the model's answer. InvalidArgument: tools that are not a
  // JSON list, or the template's refusal. ResourceExhausted: as ChatTemplate::Render.
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                                     std::string_view tools_json, bool opens_answer,
                                     const std::tm& now) const;

  const std::string& source() const { return source_; }  // the file's name without its folder

 private:
  explicit ChatFormat(ChatTemplate usual) : usual_(std::move(usual)) {}

  ChatTemplate usual_;
  std::optional<ChatTemplate> with_tools_;
  std::string source_;
  nlohmann::ordered_json tokens_;  // bos_token etc., as far as the folder names them
};

}  // namespace ovq::jinja
