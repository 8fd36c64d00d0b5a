// The lexer: template text to tokens, by the rules of jinja2/lexer.py (3.1) with trim_blocks and
// lstrip_blocks; and the parser's cursor over them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/value.h"

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

// The parsers' cursor over a template's tokens.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  int previous_line() const { return previous_line_; }  // of the token before the current one
  const Token& lookahead() const { return tokens_[at_ + (at_ + 1 < tokens_.size())]; }
  Token Next() {
    Token token = current();
    previous_line_ = token.line;
    at_ += at_ + 1 < tokens_.size();
    return token;
  }

  bool Is(TokenType type) const { return current().type == type; }
  bool IsOperator(std::string_view text) const {
    return Is(TokenType::kOperator) && current().text == text;
  }
  bool IsName(std::string_view text) const {
    return Is(TokenType::kName) && current().text == text;
  }
  bool SkipOperator(std::string_view text) { return IsOperator(text) && Skip(); }
  bool SkipName(std::string_view text) { return IsName(text) && Skip(); }

  void ExpectOperator(std::string_view text) {
    if (!SkipOperator(text)) Unexpected("'" + std::string(text) + "'");
  }
  Token Expect(TokenType type, const std::string& what) {
    if (!Is(type)) Unexpected(what);
    return Next();
  }

  [[noreturn]] void Fail(std::string message, ErrorKind kind = ErrorKind::kSyntax) const {
    throw Error{kind, current().line, std::move(message)};
  }
  [[noreturn]] void Unexpected(const std::string& expected) const;

 private:
  bool Skip() {
    Next();
    return true;
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int previous_line_ = 1;
};

}  // namespace ovq::jinja
