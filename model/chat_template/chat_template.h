// ChatTemplate renders the messages of a conversation to the text of a prompt, as
// apply_chat_template of Hugging Face Transformers does. It is an interpreter for the part of Jinja
// that chat templates use. Its output is that of Jinja2 3.1 in its immutable sandbox with
// trim_blocks, lstrip_blocks and without autoescape. Not supported: include, import, extends,
// block, integers of more than 64 bits, and filters, methods and formats of numbers that no known
// chat template uses.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/limits.h"

namespace ovq::jinja {

struct Template;

// Immutable; any thread.
class ChatTemplate {
 public:
  // Parses a template. Messages begin with `what` and the line. DataLoss: wrong syntax, invalid
  // UTF-8, more than kMaxTemplateBytes.
  static absl::StatusOr<ChatTemplate> Parse(std::string_view text, std::string what);

  // Renders the template. `variables` is an object: messages, tools, add_generation_prompt and
  // whatever else the template reads. Untrusted templates and variables are fine. InvalidArgument:
  // the template refuses the variables (its own message, at the end) or they do not fit it.
  // ResourceExhausted: the rendering exceeds `limits`.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables, const std::tm& now,
                                     const RenderLimits& limits = {}) const;

 private:
  ChatTemplate(std::shared_ptr<const Template> parsed, std::string what);

  std::shared_ptr<const Template> parsed_;
  std::string what_;
};

}  // namespace ovq::jinja
