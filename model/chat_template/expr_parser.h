// ExprParser parses expressions by the grammar and precedence of jinja2/parser.py (3.1).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/chat_template/ast.h"
#include "model/chat_template/token_reader.h"

namespace ovq::jinja {

class ExprParser {
 public:
  ExprParser(std::vector<Token> tokens, Template& parsed)
      : tokens_(std::move(tokens)), template_(parsed) {}

 protected:
  const Expr* Expression() { return Conditional(); }
  const Expr* Or();
  // Parses one expression, or a tuple without parentheses, up to the end of the tag or the name
  // `end`.
  const Expr* Tuple(bool with_conditional, std::string_view end = "");
  // Parses any number of filters `| name(...)` applied to `input`, which is null in blocks.
  const Expr* Filters(const Expr* input, bool expects_pipe = true);
  Target AssignTarget(bool with_attribute, std::string_view end = "");
  std::string AssignName();

  TokenReader tokens_;
  Template& template_;
  // Number of open ifs. An unknown filter or test is a syntax error outside of ifs; inside one,
  // only evaluating it fails.
  int open_ifs_ = 0;
  std::vector<Macro*> open_macros_;

 private:
  friend class Nesting;

  Expr* Make(ExprKind kind, std::vector<const Expr*> parts = {}, std::string name = "");
  const Expr* Literal(Value value);
  const Expr* Conditional();
  const Expr* And();
  const Expr* Not();
  const Expr* Compare();
  const Expr* Sum();
  const Expr* Concat();
  const Expr* Product();
  const Expr* Power();
  const Expr* Unary(bool with_filter = true);
  const Expr* Primary();
  const Expr* Name();
  const Expr* String();
  const Expr* Parenthesized();
  const Expr* ListLiteral();
  const Expr* DictLiteral();
  const Expr* Postfix(const Expr* node);
  const Expr* FilterOrTest(const Expr* node);
  const Expr* Filter(const Expr* input);
  const Expr* Test(const Expr* input);
  const Expr* Subscript(const Expr* node);
  const Expr* Call(const Expr* callee);
  Arguments CallArguments();
  bool TupleEnds(std::string_view end) const;
  Target OneTarget(bool with_attribute);

  int depth_ = 0;
};

// Counts one level of nested expressions or blocks while it lives.
class Nesting {
 public:
  explicit Nesting(ExprParser& parser);
  ~Nesting() { --parser_.depth_; }
  Nesting(const Nesting&) = delete;

 private:
  ExprParser& parser_;
};

}  // namespace ovq::jinja
