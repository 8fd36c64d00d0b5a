// ChatFormat: a model folder's chat template with the special tokens that the template may name.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat_template/chat_template.h"

namespace ovq::jinja {

// A call to a tool, which an answer asks for.
struct ToolCall {
  std::string id, name;
  std::string
      arguments_json;  // the template gets it parsed, or as a text where it is no JSON object
};

// Empty fields are absent from what the template sees, but for the first two.
struct ChatMessage {
  std::string role;
  std::optional<std::string> content = "";  // null with calls alone; "" where a template needs text
  std::string reasoning =
      {};  // before the content; `reasoning_content` and `tool_plan` for templates
  std::vector<ToolCall> tool_calls = {};
  std::string tool_call_id = {};  // of the call that a message of role "tool" answers
  std::string name = {};          // of the tool, or the author
};

struct Conversation {
  std::span<const ChatMessage> messages = {};
  std::string_view tools_json = {};  // a list of callable tools; empty for none
  std::string_view args_json = {};   // an object of further variables; empty for none
  bool opens_answer = false;         // the text ends with the beginning of the model's answer
};

// The use that a template has for messages of a role.
enum class RoleUse : uint8_t {
  kWritten,
  kPassedOver,  // nothing of them is written
  kRefused,     // perhaps for another reason
};

// Immutable; any thread.
class ChatFormat {
 public:
  // Loads the template "default" and, for conversations with tools, "tool_use" if there is one.
  // They are looked for as Transformers does: additional_chat_templates/NAME.jinja and, for the
  // default, chat_template.jinja; else the field `chat_template` of chat_template.json; else that
  // of tokenizer_config.json, or a GGUF file's. A field is a text, or a list of named texts.
  // `file`, if not empty, is the only template, in place of the folder's. Null if there is none.
  // Errors name the file if it cannot be read or its template cannot be parsed.
  static absl::StatusOr<std::unique_ptr<ChatFormat>> Load(const std::string& folder,
                                                          const std::string& file = "");

  // InvalidArgument: tools that are no JSON list, arguments that are no JSON object or name a
  // variable of ours, or the template's refusal. ResourceExhausted: as ChatTemplate::Render.
  absl::StatusOr<std::string> Render(const Conversation& conversation, const std::tm& now) const;
  // Finds the use of a role by a conversation made up to see it.
  RoleUse UseOfRole(const std::string& role, const std::tm& now) const;
  // Whether the template writes a message of this role between a user's and its answer. False where
  // it refuses it.
  bool WritesLater(const std::string& role, const std::tm& now) const;

  const std::string& source() const { return source_; }  // the file's name without its folder

 private:
  explicit ChatFormat(ChatTemplate usual) : usual_(std::move(usual)) {}

  ChatTemplate usual_;
  std::optional<ChatTemplate> with_tools_;
  std::string source_;
  nlohmann::ordered_json tokens_;  // bos_token etc., as far as the folder names them
};

}  // namespace ovq::jinja
