// Template text to tokens, as jinja2/lexer.py (3.1) cuts it with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::jinja {

enum class TokenType {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type;
  int line;
  std::string text;  // what it says; strings without quotes and escapes
  int64_t integer = 0;
  double real = 0;
};

// Of valid UTF-8. Ends with one kEnd. Throws Error of kSyntax.
std::vector<Token> Lex(std::string_view source);

}  // namespace ovq::jinja
