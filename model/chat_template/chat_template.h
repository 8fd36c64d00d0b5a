// Chat templates: Jinja text that makes the text of a prompt from the messages of a conversation,
// as apply_chat_template of Hugging Face Transformers does. An interpreter of our own, with as much
// of Jinja as such templates use; the texts are those of Jinja2 3.1 in its immutable sandbox with
// trim_blocks, lstrip_blocks and without autoescape. What it does not have: include, import,
// extends and block; integers of more than 64 bits.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/limits.h"

namespace ovq {

namespace jinja {
struct Template;
}

// Immutable; any thread.
class ChatTemplate {
 public:
  // `what` begins every message, and the line follows it. DataLoss: wrong syntax, invalid UTF-8,
  // more than kMaxTemplateBytes.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view text, std::string what);

  // The text for these variables, an object: messages, tools, add_generation_prompt and whatever
  // else the template asks for. Untrusted templates and variables are fine.
  // InvalidArgument: the template refuses them (its own message, at the end) or they do not fit it.
  // ResourceExhausted: the rendering spends more than `limits`.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables, const std::tm& now,
                                     const RenderLimits& limits = {}) const;

 private:
  ChatTemplate(std::shared_ptr<const jinja::Template> parsed, std::string what);

  std::shared_ptr<const jinja::Template> parsed_;
  std::string what_;
};

}  // namespace ovq
