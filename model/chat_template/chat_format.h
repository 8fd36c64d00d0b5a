// How a model's folder writes conversations: its chat template and the special tokens that the
// template may name.
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

namespace ovq {

struct ChatMessage {
  std::string role, content;
};

// Immutable; any thread.
class ChatFormat {
 public:
  // The template of chat_template.jinja, else `chat_template` of tokenizer_config.json: its text,
  // or a list of named ones, of which "default" is used, and "tool_use" where there are tools. Null
  // if the folder has neither. Errors name the file: one that cannot be read, a template that
  // cannot be parsed.
  static absl::StatusOr<std::unique_ptr<ChatFormat>> Load(const std::string& folder);

  // The text of a conversation. `tools_json`: a list of what may be called, empty for none;
  // `opens_answer`: with what begins the model's answer. InvalidArgument: tools that are no JSON
  // list, what the template refuses. ResourceExhausted: as ChatTemplate::Render.
  absl::StatusOr<std::string> Render(std::span<const ChatMessage> messages,
                                     std::string_view tools_json, bool opens_answer,
                                     const std::tm& now) const;

  const std::string& source() const { return source_; }  // the file's name without its folder

 private:
  explicit ChatFormat(ChatTemplate usual) : usual_(std::move(usual)) {}

  ChatTemplate usual_;
  std::optional<ChatTemplate> with_tools_;
  std::string source_;
  nlohmann::ordered_json tokens_;  // bos_token and the like, those that the folder names
};

}  // namespace ovq
