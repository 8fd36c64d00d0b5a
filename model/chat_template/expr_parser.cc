#include "model/chat_template/expr_parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/builtin.h"

namespace ovq::jinja {
namespace {

constexpr int kMaxNesting = 100;

bool IsComparison(std::string_view text) {
  return text == "==" || text == "!=" || text == "<" || text == "<=" || text == ">" || text == ">=";
}

}  // namespace

Nesting::Nesting(ExprParser& parser) : parser_(parser) {
  if (parser.depth_ == kMaxNesting) {
    parser.tokens_.Fail(absl::StrCat("nested more than ", kMaxNesting, " levels deep"));
  }
  ++parser.depth_;
}

Expr* ExprParser::Make(ExprKind kind, std::vector<const Expr*> parts, std::string name) {
  Expr& expr = template_.exprs.emplace_back();
  expr.kind = kind;
  // The line of the leftmost part.
  expr.line = parts.empty() || parts[0] == nullptr ? tokens_.previous_line() : parts[0]->line;
  expr.parts = std::move(parts);
  expr.name = std::move(name);
  return &expr;
}

const Expr* ExprParser::Literal(Value value) {
  Expr* literal = Make(ExprKind::kLiteral);
  literal->value = value;
  return literal;
}

const Expr* ExprParser::Expression() {
  const Nesting nesting(*this);
  const Expr* node = Operation(Precedence::kOr);
  while (tokens_.SkipName("if")) {
    const Expr* test = Operation(Precedence::kOr);
    const Expr* other = tokens_.SkipName("else") ? Expression() : nullptr;
    node = Make(ExprKind::kConditional, {test, node, other});
  }
  return node;
}

const Expr* ExprParser::Operation(Precedence loosest) {
  const auto from_the_left = [&](ExprKind kind, std::initializer_list<std::string_view> operators) {
    const auto tighter = static_cast<Precedence>(static_cast<int>(loosest) + 1);
    const Expr* node = Operation(tighter);
    while (std::ranges::any_of(operators, [this](std::string_view name) {
      return tokens_.IsOperator(name) || tokens_.IsName(name);
    })) {
      const std::string name = tokens_.Next().text;
      node = Make(kind, {node, Operation(tighter)}, name);
    }
    return node;
  };
  switch (loosest) {
    case Precedence::kOr:
      return from_the_left(ExprKind::kOr, {"or"});
    case Precedence::kAnd:
      return from_the_left(ExprKind::kAnd, {"and"});
    case Precedence::kNot:
      return Not();
    case Precedence::kCompare:
      return Compare();
    case Precedence::kSum:
      return from_the_left(ExprKind::kBinary, {"+", "-"});
    case Precedence::kConcat:
      return Concat();
    case Precedence::kProduct:
      return from_the_left(ExprKind::kBinary, {"*", "/", "//", "%"});
    case Precedence::kPower:  // from the left in Jinja, unlike in Python
      return from_the_left(ExprKind::kBinary, {"**"});
    case Precedence::kUnary:
      break;
  }
  return Unary();
}

const Expr* ExprParser::Not() {
  if (!tokens_.SkipName("not")) return Compare();
  const Nesting nesting(*this);
  return Make(ExprKind::kUnary, {Not()}, "not");
}

const Expr* ExprParser::Compare() {
  Expr* chain = nullptr;
  const Expr* node = Operation(Precedence::kSum);
  while (true) {
    std::string_view name = tokens_.current().text;
    if (tokens_.IsName("not") && tokens_.lookahead().type == TokenType::kName &&
        tokens_.lookahead().text == "in") {
      tokens_.Next();
      name = "not in";
    } else if (!tokens_.IsName("in") && !(tokens_.Is(TokenType::kOperator) && IsComparison(name))) {
      return chain != nullptr ? chain : node;
    }
    tokens_.Next();
    if (chain == nullptr) chain = Make(ExprKind::kCompare, {node});
    chain->names.emplace_back(name);
    chain->parts.push_back(Operation(Precedence::kSum));
  }
}

const Expr* ExprParser::Concat() {
  std::vector<const Expr*> parts;
  do {
    parts.push_back(Operation(Precedence::kProduct));
  } while (tokens_.SkipOperator("~"));
  return parts.size() == 1 ? parts[0] : Make(ExprKind::kConcat, std::move(parts));
}

const Expr* ExprParser::Unary(bool with_filter) {
  const Nesting nesting(*this);
  const Expr* node = nullptr;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    const std::string name = tokens_.Next().text;
    node = Make(ExprKind::kUnary, {Unary(/*with_filter=*/false)}, name);
  } else {
    node = Primary();
  }
  node = Postfix(node);
  return with_filter ? FilterOrTest(node) : node;
}

const Expr* ExprParser::Primary() {
  std::vector<const Expr*> parts;
  const auto add_part = [&] { parts.push_back(Expression()); };
  switch (tokens_.current().type) {
    case TokenType::kName:
      return Name();
    case TokenType::kString: {
      Str& string = template_.strings.emplace_back();
      while (tokens_.Is(TokenType::kString)) string.text += tokens_.Next().text;
      return Literal(Value::FromPointer(Kind::kString, &string));
    }
    case TokenType::kInteger:
      return Literal(Value::Int(tokens_.Next().integer));
    case TokenType::kFloat:
      return Literal(Value::Float(tokens_.Next().real));
    default:
      break;
  }
  if (tokens_.SkipOperator("(")) {
    if (tokens_.SkipOperator(")")) return Make(ExprKind::kTuple);
    const Expr* node = Tuple(/*with_conditional=*/true);
    tokens_.ExpectOperator(")");
    return node;
  }
  if (tokens_.SkipOperator("[")) {
    CommaSeparated("]", add_part);
    return Make(ExprKind::kList, std::move(parts));
  }
  if (!tokens_.SkipOperator("{")) tokens_.Unexpected("an expression");
  CommaSeparated("}", [&] {
    add_part();
    tokens_.ExpectOperator(":");
    add_part();
  });
  return Make(ExprKind::kDict, std::move(parts));
}

const Expr* ExprParser::Name() {
  const std::string name = tokens_.Next().text;
  if (name == "true" || name == "True") return Literal(Value::Bool(true));
  if (name == "false" || name == "False") return Literal(Value::Bool(false));
  if (name == "none" || name == "None") return Literal(Value::None());
  for (Macro* macro : open_macros_) {
    macro->varargs |= name == "varargs";
    macro->kwargs |= name == "kwargs";
    macro->caller |= name == "caller";
  }
  return Make(ExprKind::kName, {}, name);
}

bool ExprParser::TupleEnds(std::string_view end) const {
  return tokens_.Is(TokenType::kPrintEnd) || tokens_.Is(TokenType::kBlockEnd) ||
         tokens_.IsOperator(")") || (!end.empty() && tokens_.IsName(end));
}

const Expr* ExprParser::Tuple(bool with_conditional, std::string_view end) {
  const auto item = [&] { return with_conditional ? Expression() : Operation(Precedence::kOr); };
  std::vector<const Expr*> items = {item()};
  if (!tokens_.IsOperator(",")) return items[0];
  while (tokens_.SkipOperator(",") && !TupleEnds(end)) items.push_back(item());
  return Make(ExprKind::kTuple, std::move(items));
}

const Expr* ExprParser::Postfix(const Expr* node) {
  while (true) {
    if (tokens_.IsOperator(".") || tokens_.IsOperator("[")) {
      node = Subscript(node);
    } else if (tokens_.IsOperator("(")) {
      node = Call(node);
    } else {
      return node;
    }
  }
}

const Expr* ExprParser::Subscript(const Expr* node) {
  if (tokens_.SkipOperator(".")) {
    if (tokens_.Is(TokenType::kInteger)) {
      return Make(ExprKind::kItem, {node, Literal(Value::Int(tokens_.Next().integer))});
    }
    return Make(ExprKind::kAttribute, {node}, tokens_.Expect(TokenType::kName, "a name").text);
  }
  tokens_.ExpectOperator("[");
  std::vector<const Expr*> bounds(3);
  size_t n_colons = 0;
  for (; n_colons < 3; ++n_colons) {
    if (!tokens_.IsOperator(":") && !tokens_.IsOperator("]")) bounds[n_colons] = Expression();
    if (n_colons == 2 || !tokens_.SkipOperator(":")) break;
  }
  if (n_colons == 0 && bounds[0] == nullptr) tokens_.Unexpected("an index or a slice");
  tokens_.ExpectOperator("]");
  if (n_colons == 0) return Make(ExprKind::kItem, {node, bounds[0]});
  return Make(ExprKind::kSlice, {node, bounds[0], bounds[1], bounds[2]});
}

const Expr* ExprParser::Call(const Expr* callee) {
  Arguments arguments = CallArguments();
  Expr* call = Make(ExprKind::kCall, {callee});
  call->arguments = std::move(arguments);
  return call;
}

Arguments ExprParser::CallArguments() {
  Arguments arguments;
  tokens_.ExpectOperator("(");
  CommaSeparated(")", [&] {
    const bool may_spread = arguments.named_spread == nullptr;
    if (may_spread && arguments.spread == nullptr && tokens_.SkipOperator("*")) {
      arguments.spread = Expression();
    } else if (may_spread && tokens_.SkipOperator("**")) {
      arguments.named_spread = Expression();
    } else if (may_spread && tokens_.Is(TokenType::kName) &&
               tokens_.lookahead().type == TokenType::kOperator &&
               tokens_.lookahead().text == "=") {
      std::string name = tokens_.Next().text;
      tokens_.Next();
      arguments.named.emplace_back(std::move(name), Expression());
    } else if (may_spread && arguments.named.empty() && arguments.spread == nullptr) {
      arguments.positional.push_back(Expression());
    } else {
      tokens_.Fail("arguments of a call out of order");
    }
  });
  return arguments;
}

const Expr* ExprParser::FilterOrTest(const Expr* node) {
  while (true) {
    if (tokens_.IsOperator("|")) {
      node = Filters(node);
    } else if (tokens_.SkipName("is")) {
      node = Test(node);
    } else if (tokens_.IsOperator("(")) {
      node = Call(node);
    } else {
      return node;
    }
  }
}

const Expr* ExprParser::Filters(const Expr* input, bool expects_pipe) {
  while (!expects_pipe || tokens_.SkipOperator("|")) {
    input = Filter(input);
    expects_pipe = true;
  }
  return input;
}

void ExprParser::SetBuiltin(Expr& call, const char* kind,
                            const Builtin* (*find)(std::string_view)) {
  call.name = tokens_.Expect(TokenType::kName, absl::StrCat("the name of a ", kind)).text;
  call.builtin = find(call.name);
  if (call.builtin == nullptr && open_ifs_ == 0) {
    tokens_.Fail(absl::StrCat("there is no ", kind, " named ", Quoted(call.name)));
  }
}

const Expr* ExprParser::Filter(const Expr* input) {
  Expr* filter = Make(ExprKind::kFilter, {input});
  SetBuiltin(*filter, "filter", FindFilter);
  if (tokens_.IsOperator("(")) filter->arguments = CallArguments();
  return filter;
}

const Expr* ExprParser::Test(const Expr* input) {
  const bool negated = tokens_.SkipName("not");
  Expr* test = Make(ExprKind::kTest, {input});
  SetBuiltin(*test, "test", FindTest);
  const TokenType type = tokens_.current().type;
  const bool is_word = tokens_.IsName("else") || tokens_.IsName("or") || tokens_.IsName("and");
  if (tokens_.IsOperator("(")) {
    test->arguments = CallArguments();
  } else if ((type == TokenType::kName && !is_word) || type == TokenType::kString ||
             type == TokenType::kInteger || type == TokenType::kFloat || tokens_.IsOperator("[") ||
             tokens_.IsOperator("{")) {
    if (tokens_.IsName("is")) tokens_.Fail("tests cannot be chained with 'is'");
    test->arguments.positional = {Postfix(Primary())};
  }
  return negated ? Make(ExprKind::kUnary, {test}, "not") : test;
}

Target ExprParser::AssignTarget(bool with_attribute, std::string_view end) {
  Target first = OneTarget(with_attribute);
  if (!tokens_.IsOperator(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (tokens_.SkipOperator(",") && !TupleEnds(end) && !tokens_.IsOperator("=")) {
    tuple.parts.push_back(OneTarget(with_attribute));
  }
  return tuple;
}

Target ExprParser::OneTarget(bool with_attribute) {
  if (tokens_.SkipOperator("(")) {
    const Nesting nesting(*this);
    Target target = AssignTarget(with_attribute);
    tokens_.ExpectOperator(")");
    return target;
  }
  Target target;
  target.name = AssignName();
  if (with_attribute && tokens_.SkipOperator(".")) {
    target.attribute = tokens_.Expect(TokenType::kName, "the name of an attribute").text;
  }
  return target;
}

std::string ExprParser::AssignName() {
  constexpr std::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
  const std::string name = tokens_.current().text;
  if (tokens_.Is(TokenType::kName) && std::ranges::count(kConstants, std::string_view(name)) > 0) {
    tokens_.Fail(absl::StrCat("cannot assign to ", name));
  }
  return tokens_.Expect(TokenType::kName, "a name").text;
}

}  // namespace ovq::jinja
