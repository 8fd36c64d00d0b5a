// The parser: template text to statements.
#pragma once

#include <memory>
#include <string_view>

#include "model/chat_template/ast.h"

namespace ovq::jinja {

// Parses valid UTF-8. Throws Error: kSyntax, or kType for statements that load other templates.
std::unique_ptr<const Template> Parse(std::string_view source);

}  // namespace ovq::jinja
