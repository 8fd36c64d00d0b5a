// ExprParser parses expressions by the grammar and precedence of jinja2/parser.py (3.1).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/chat_template/ast.h"
#include "model/chat_template/lexer.h"

namespace ovq::jinja {

class ExprParser {
 public:
  ExprParser(std::vector<Token> tokens, Template& parsed)
      : tokens_(std::move(tokens)), template_(parsed) {}

 protected:
  const Expr* Expression();
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

  // Operators by precedence, the loosest first.
  enum class Precedence { kOr, kAnd, kNot, kCompare, kSum, kConcat, kProduct, kPower, kUnary };

  Expr* Make(ExprKind kind, std::vector<const Expr*> parts = {}, std::string name = "");
  const Expr* Literal(Value value);
  // Parses an expression of operators that bind at least as tightly as `loosest`.
  const Expr* Operation(Precedence loosest);
  const Expr* Not();
  const Expr* Compare();
  const Expr* Concat();
  const Expr* Unary(bool with_filter = true);
  const Expr* Primary();
  const Expr* Name();
  const Expr* Postfix(const Expr* node);
  const Expr* FilterOrTest(const Expr* node);
  const Expr* Filter(const Expr* input);
  const Expr* Test(const Expr* input);
  // Looks up the filter or test that `call` names.
  void SetBuiltin(Expr& call, const char* kind, const Builtin* (*find)(std::string_view));
  const Expr* Subscript(const Expr* node);
  const Expr* Call(const Expr* callee);
  Arguments CallArguments();
  // Parses items, commas between them and perhaps one behind, and the operator `close`.
  template <class ParseItem>
  void CommaSeparated(std::string_view close, ParseItem parse_item) {
    for (bool first = true; !tokens_.IsOperator(close); first = false) {
      if (!first) tokens_.ExpectOperator(",");
      if (!tokens_.IsOperator(close)) parse_item();
    }
    tokens_.ExpectOperator(close);
  }
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
