// The lexer: template text to tokens, by the rules of jinja2/lexer.py (3.1) with trim_blocks and
// lstrip_blocks.
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
  std::string text;  // the token's text; strings without quotes and escapes
  int64_t integer = 0;
  double real = 0;
};

// Lexes valid UTF-8. The last token is kEnd. Throws Error of kSyntax.
std::vector<Token> Lex(std::string_view source);

}  // namespace ovq::jinja
