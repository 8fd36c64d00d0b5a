// TokenReader: the parsers' cursor over a template's tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/heap.h"
#include "model/chat_template/lexer.h"

namespace ovq::jinja {

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
  bool IsOperator(std::string_view text) const { return Is(TokenType::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(TokenType::kName, text); }
  bool Is(TokenType type, std::string_view text) const {
    return current().type == type && current().text == text;
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
