// The text of a template to its statements.
#pragma once

#include <memory>
#include <string_view>

#include "model/chat_template/ast.h"

namespace ovq::jinja {

// Of valid UTF-8. Throws Error: kSyntax, or kType for what needs a loader of other templates.
std::unique_ptr<const Template> Parse(std::string_view source);

}  // namespace ovq::jinja
