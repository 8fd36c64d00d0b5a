// Parse of program.h: grammar and precedence of jinja2/parser.py (3.1), and each construct's
// meaning. Both stand in one long file, so that a construct is read and changed in one place.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_join.h"
#include "model/chat_template/lexer.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/program.h"

namespace ovq::jinja {
namespace {

constexpr int kMaxNesting = 100;

// Makes the nodes of expressions, and has the state of a parser.
class NodeMaker {
 public:
  NodeMaker(std::vector<Token> tokens, Template& parsed)
      : tokens_(std::move(tokens)), template_(parsed) {}

 protected:
  // Counts one level of nested expressions or blocks while the result lives.
  auto Nest() {
    if (depth_ == kMaxNesting) {
      tokens_.Fail(absl::StrCat("nested more than ", kMaxNesting, " levels deep"));
    }
    ++depth_;
    return absl::Cleanup([this] { --depth_; });
  }

  const Expr* Make(int line, std::function<Value(Rendering&)> value, const Call* call = nullptr) {
    template_.exprs.push_back({line, std::move(value), call});
    return &template_.exprs.back();
  }
  const Expr* Literal(Value value) {
    return Make(tokens_.previous_line(), [=](Rendering&) { return value; });
  }
  const Expr* Sequence(Kind kind, std::vector<const Expr*> items) {
    const int line = items.empty() ? tokens_.previous_line() : items[0]->line;
    return Make(line, [=](Rendering& r) { return r.heap.Make(kind, r.EvalAll(items)); });
  }
  const Expr* Negated(const Expr* node) {
    return Make(node->line, [=](Rendering& r) { return Value::Bool(!Truth((*node)(r))); });
  }
  const Call* Keep(const Expr* callee, Arguments arguments) {
    template_.calls.push_back({callee, std::move(arguments)});
    return &template_.calls.back();
  }

  // Parses the name of a filter or test.
  std::string BuiltinName(const BuiltinKind& kind) {
    std::string name =
        tokens_.Expect(TokenType::kName, absl::StrCat("the name of a ", kind.name)).text;
    if (kind.find(name) == nullptr && open_ifs_ == 0) {
      tokens_.Fail(absl::StrCat("there is no ", kind.name, " named ", Quoted(name)));
    }
    return name;
  }
  bool TupleEnds(std::string_view end) const {
    return tokens_.Is(TokenType::kPrintEnd) || tokens_.Is(TokenType::kBlockEnd) ||
           tokens_.IsOperator(")") || (!end.empty() && tokens_.IsName(end));
  }

  TokenReader tokens_;
  Template& template_;
  // Number of open ifs. An unknown filter or test is a syntax error outside of ifs; inside one,
  // only evaluating it fails.
  int open_ifs_ = 0;

 private:
  int depth_ = 0;
};

class ExprParser : protected NodeMaker {
 public:
  using NodeMaker::NodeMaker;

 protected:
  const Expr* Expression() {
    const auto nesting = Nest();
    const Expr* node = Or();
    while (tokens_.SkipName("if")) {
      const Expr* test = Or();
      const Expr* other = tokens_.SkipName("else") ? Expression() : nullptr;
      node = Make(test->line, [=](Rendering& r) {
        if (Truth((*test)(r))) return (*node)(r);
        if (other != nullptr) return (*other)(r);
        return r.heap.MakeUndefined("the inline if-expression has no else section");
      });
    }
    return node;
  }

  // Parses an expression without `if`, the loosest of the operators.
  const Expr* Or() { return Logic("or", &ExprParser::And); }

  // Parses one expression, or a tuple without parentheses, up to the end of the tag or the name
  // `end`.
  const Expr* Tuple(bool with_conditional, std::string_view end = "") {
    const auto item = [&] { return with_conditional ? Expression() : Or(); };
    std::vector<const Expr*> items = {item()};
    if (!tokens_.IsOperator(",")) return items[0];
    while (tokens_.SkipOperator(",") && !TupleEnds(end)) items.push_back(item());
    return Sequence(Kind::kTuple, std::move(items));
  }

  // Parses any number of filters `| name(...)` applied to `input`, which is null in blocks: the
  // first one's input is what the rendering has captured.
  const Expr* Filters(const Expr* input, bool expects_pipe = true) {
    for (; !expects_pipe || tokens_.SkipOperator("|"); expects_pipe = true) {
      const int line = input != nullptr ? input->line : tokens_.previous_line();
      const std::string name = BuiltinName(kFilter);
      const Call* call = Keep(input, tokens_.IsOperator("(") ? CallArguments() : Arguments());
      input = Make(line, [=](Rendering& r) {
        const Value value = call->callee != nullptr ? (*call->callee)(r) : r.captured;
        return CallNamed(r.heap, kFilter, name, r.EvalArguments(call->arguments, value));
      });
    }
    return input;
  }

  std::vector<Macro*> open_macros_;

 private:
  using Rule = const Expr* (ExprParser::*)();

  // The methods below parse the operators by precedence, the loosest first.
  const Expr* And() { return Logic("and", &ExprParser::Not); }
  const Expr* Not() {
    if (!tokens_.SkipName("not")) return Compare();
    const auto nesting = Nest();
    return Negated(Not());
  }
  const Expr* Compare();
  const Expr* Sum() { return Binaries({"+", "-"}, &ExprParser::Concat); }
  const Expr* Concat() {
    std::vector<const Expr*> parts = {Product()};
    while (tokens_.SkipOperator("~")) parts.push_back(Product());
    if (parts.size() == 1) return parts[0];
    return Make(parts[0]->line, [=](Rendering& r) {
      std::string text;
      for (const Value part : r.EvalAll(parts)) text += ToText(r.heap, part);
      return r.heap.Text(text);
    });
  }
  const Expr* Product() { return Binaries({"*", "/", "//", "%"}, &ExprParser::Power); }
  // From the left in Jinja, unlike in Python.
  const Expr* Power() { return Binaries({"**"}, &ExprParser::Unary); }
  const Expr* Unary() { return Unary(/*with_filter=*/true); }
  const Expr* Unary(bool with_filter);
  const Expr* FilterOrTest(const Expr* node);

  const Expr* Logic(std::string_view name, Rule tighter);
  const Expr* Binaries(std::initializer_list<std::string_view> names, Rule tighter);
  const Expr* Primary();
  const Expr* Name();
  const Expr* Postfix(const Expr* node);
  const Expr* Subscript(const Expr* node);
  const Expr* Test(const Expr* input);
  const Expr* Called(const Expr* callee) {
    const Call* call = Keep(callee, CallArguments());
    return Make(
        callee->line,
        [=](Rendering& r) {
          const Value function = (*call->callee)(r);
          return r.CallValue(function, r.EvalArguments(call->arguments));
        },
        call);
  }
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
};

const Expr* ExprParser::Logic(std::string_view name, Rule tighter) {
  const Expr* node = (this->*tighter)();
  while (tokens_.SkipName(name)) {
    const Expr* right = (this->*tighter)();
    node = Make(node->line, [=, decides = name == "or"](Rendering& r) {
      const Value left = (*node)(r);
      return Truth(left) == decides ? left : (*right)(r);
    });
  }
  return node;
}

const Expr* ExprParser::Binaries(std::initializer_list<std::string_view> names, Rule tighter) {
  const Expr* node = (this->*tighter)();
  while (std::ranges::any_of(names, [&](auto name) { return tokens_.IsOperator(name); })) {
    const std::string name = tokens_.Next().text;
    const Expr* right = (this->*tighter)();
    node = Make(node->line, [=](Rendering& r) {
      const Value left = (*node)(r);
      return Binary(r.heap, name, left, (*right)(r));
    });
  }
  return node;
}

const Expr* ExprParser::Compare() {
  constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};
  const Expr* first = Sum();
  std::vector<std::pair<std::string, const Expr*>> chain;
  while (true) {
    const Token next = tokens_.lookahead();
    std::string name = tokens_.current().text;
    if (tokens_.IsName("not") && next.type == TokenType::kName && next.text == "in") {
      tokens_.Next();
      name = "not in";
    } else if (!tokens_.IsName("in") &&
               !(tokens_.Is(TokenType::kOperator) && std::ranges::count(kComparisons, name) > 0)) {
      break;
    }
    tokens_.Next();
    chain.emplace_back(std::move(name), Sum());
  }
  if (chain.empty()) return first;
  return Make(first->line, [=](Rendering& r) {
    Value left = (*first)(r);
    for (const auto& [name, expr] : chain) {
      const Value right = (*expr)(r);
      if (!jinja::Compare(r.heap, name, left, right)) return Value::Bool(false);
      left = right;
    }
    return Value::Bool(true);
  });
}

const Expr* ExprParser::Unary(bool with_filter) {
  const auto nesting = Nest();
  const Expr* node = nullptr;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    const std::string name = tokens_.Next().text;
    const Expr* operand = Unary(/*with_filter=*/false);
    node = Make(operand->line,
                [=](Rendering& r) { return jinja::Unary(r.heap, name, (*operand)(r)); });
  } else {
    node = Primary();
  }
  node = Postfix(node);
  return with_filter ? FilterOrTest(node) : node;
}

const Expr* ExprParser::FilterOrTest(const Expr* node) {
  while (true) {
    if (tokens_.IsOperator("|")) {
      node = Filters(node);
    } else if (tokens_.SkipName("is")) {
      node = Test(node);
    } else if (tokens_.IsOperator("(")) {
      node = Called(node);
    } else {
      return node;
    }
  }
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
    if (tokens_.SkipOperator(")")) return Sequence(Kind::kTuple, {});
    const Expr* node = Tuple(/*with_conditional=*/true);
    tokens_.ExpectOperator(")");
    return node;
  }
  if (tokens_.SkipOperator("[")) {
    CommaSeparated("]", add_part);
    return Sequence(Kind::kList, std::move(parts));
  }
  if (!tokens_.SkipOperator("{")) tokens_.Unexpected("an expression");
  CommaSeparated("}", [&] {
    add_part();
    tokens_.ExpectOperator(":");
    add_part();
  });
  return Make(parts.empty() ? tokens_.previous_line() : parts[0]->line, [=](Rendering& r) {
    const Value dict = r.heap.MakeDict();
    for (size_t i = 0; i < parts.size(); i += 2) {
      const Value key = (*parts[i])(r);
      r.heap.Set(dict, key, (*parts[i + 1])(r));
    }
    return dict;
  });
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
  return Make(tokens_.previous_line(), [=](Rendering& r) { return r.Find(name); });
}

const Expr* ExprParser::Postfix(const Expr* node) {
  while (true) {
    if (tokens_.IsOperator(".") || tokens_.IsOperator("[")) {
      node = Subscript(node);
    } else if (tokens_.IsOperator("(")) {
      node = Called(node);
    } else {
      return node;
    }
  }
}

const Expr* ExprParser::Subscript(const Expr* node) {
  const auto item = [&](const Expr* index) {
    return Make(node->line, [=](Rendering& r) {
      const Value value = (*node)(r);
      return Item(r.heap, value, (*index)(r));
    });
  };
  if (tokens_.SkipOperator(".")) {
    if (tokens_.Is(TokenType::kInteger)) return item(Literal(Value::Int(tokens_.Next().integer)));
    const std::string name = tokens_.Expect(TokenType::kName, "a name").text;
    return Make(node->line, [=](Rendering& r) { return Attribute(r.heap, (*node)(r), name); });
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
  if (n_colons == 0) return item(bounds[0]);
  return Make(node->line, [=](Rendering& r) {
    const Value value = (*node)(r);
    std::vector<Value> at;
    for (const Expr* bound : bounds) at.push_back(bound != nullptr ? (*bound)(r) : Value::None());
    return Slice(r.heap, value, at[0], at[1], at[2]);
  });
}

const Expr* ExprParser::Test(const Expr* input) {
  const bool negated = tokens_.SkipName("not");
  const std::string name = BuiltinName(kTest);
  const TokenType type = tokens_.current().type;
  const bool is_word = tokens_.IsName("else") || tokens_.IsName("or") || tokens_.IsName("and");
  Arguments arguments;
  if (tokens_.IsOperator("(")) {
    arguments = CallArguments();
  } else if ((type == TokenType::kName && !is_word) || type == TokenType::kString ||
             type == TokenType::kInteger || type == TokenType::kFloat || tokens_.IsOperator("[") ||
             tokens_.IsOperator("{")) {
    if (tokens_.IsName("is")) tokens_.Fail("tests cannot be chained with 'is'");
    arguments.positional = {Postfix(Primary())};
  }
  const Call* call = Keep(input, std::move(arguments));
  const Expr* test = Make(input->line, [=](Rendering& r) {
    const Value value = (*call->callee)(r);
    return Value::Bool(
        Truth(CallNamed(r.heap, kTest, name, r.EvalArguments(call->arguments, value))));
  });
  return negated ? Negated(test) : test;
}

Arguments ExprParser::CallArguments() {
  Arguments arguments;
  tokens_.ExpectOperator("(");
  CommaSeparated(")", [&] {
    const bool may_spread = arguments.named_spread == nullptr;
    const Token& next = tokens_.lookahead();
    if (may_spread && arguments.spread == nullptr && tokens_.SkipOperator("*")) {
      arguments.spread = Expression();
    } else if (may_spread && tokens_.SkipOperator("**")) {
      arguments.named_spread = Expression();
    } else if (may_spread && tokens_.Is(TokenType::kName) && next.type == TokenType::kOperator &&
               next.text == "=") {
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

class Parser : ExprParser {
 public:
  using ExprParser::ExprParser;

  void Run() { template_.body = Statements({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // A statement that counts as one level, with the line of its errors.
  static Statement At(int line, Statement run) {
    return [line, run = std::move(run)](Rendering& r) {
      const Level level(r.heap, line);
      run(r);
    };
  }

  // Parses up to a tag that begins with one of `ends`, which becomes the current token; without
  // `ends`, to the end of the template.
  Block Statements(Ends ends) {
    const auto nesting = Nest();
    Block block;
    while (!tokens_.Is(TokenType::kEnd)) {
      const TokenType type = tokens_.current().type;
      const int line = tokens_.previous_line();
      const std::string text = tokens_.Next().text;
      if (type == TokenType::kData) {
        block.push_back(At(line, [text](Rendering& r) { r.Print(text); }));
      } else if (type == TokenType::kPrintBegin) {
        block.push_back(Print());
        tokens_.Expect(TokenType::kPrintEnd, "'}}'");
      } else {
        for (const std::string_view end : ends) {
          if (tokens_.IsName(end)) return block;
        }
        block.push_back(Tag());
        tokens_.Expect(TokenType::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() == 0) return block;
    const std::vector<std::string> names(ends.begin(), ends.end());
    tokens_.Unexpected("a tag " + absl::StrJoin(names, " or "));
  }

  Statement Print() {
    const int line = tokens_.previous_line();
    const Expr* expr = Tuple(/*with_conditional=*/true);
    return At(line, [=](Rendering& r) {
      const Value value = (*expr)(r);
      r.Print(value.is_string() ? value.text() : ToText(r.heap, value));
    });
  }

  // Parses the body of a tag whose head has been read.
  Block Body(Ends ends) {
    tokens_.SkipOperator(":");
    tokens_.Expect(TokenType::kBlockEnd, "'%}'");
    return Statements(ends);
  }
  // Parses a body and its end tag.
  Block WholeBody(std::string_view end) {
    Block body = Body({end});
    tokens_.Next();
    return body;
  }

  Statement Tag();
  Statement If();
  Statement ForTag();
  Statement Set();
  // Parses a body that is a function to Jinja: no break or continue can leave a loop from within.
  Block FunctionBody(std::string_view end) {
    const int loops = std::exchange(open_loops_, 0);
    Block body = WholeBody(end);
    open_loops_ = loops;
    return body;
  }
  void MacroBody(Macro& macro, std::string_view end) {
    open_macros_.push_back(&macro);
    macro.body = FunctionBody(end);
    open_macros_.pop_back();
  }
  void Signature(Macro& macro);
  Statement MacroTag();
  Statement CallTag();
  Statement FilterTag();
  Statement With();
  Statement Generation() {
    return
        [body = FunctionBody("endgeneration")](Rendering& r) { r.Print(r.Capture(body).text()); };
  }

  Target AssignTarget(bool with_attribute, std::string_view end = "");
  Target OneTarget(bool with_attribute);
  std::string AssignName() {
    for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
      if (tokens_.IsName(constant)) tokens_.Fail(absl::StrCat("cannot assign to ", constant));
    }
    return tokens_.Expect(TokenType::kName, "a name").text;
  }

  int open_loops_ = 0;
};

Statement Parser::Tag() {
  constexpr std::pair<std::string_view, Statement (Parser::*)()> kTags[] = {
      {"if", &Parser::If},        {"for", &Parser::ForTag},
      {"set", &Parser::Set},      {"macro", &Parser::MacroTag},
      {"call", &Parser::CallTag}, {"filter", &Parser::FilterTag},
      {"with", &Parser::With},    {"generation", &Parser::Generation}};
  const std::string name = tokens_.current().text;
  tokens_.Expect(TokenType::kName, "the name of a tag");
  const int line = tokens_.previous_line();
  for (const auto& [tag, parse] : kTags) {
    if (name == tag) return At(line, (this->*parse)());
  }
  if (name == "break" || name == "continue") {
    if (open_loops_ == 0) tokens_.Fail(absl::StrCat("'", name, "' outside of a loop"));
    const auto flow = name == "break" ? Rendering::Flow::kBreak : Rendering::Flow::kContinue;
    return At(line, [=](Rendering& r) { r.flow = flow; });
  }
  for (const std::string_view loads : {"include", "import", "from", "extends", "block"}) {
    if (name != loads) continue;
    tokens_.Fail(absl::StrCat("'", name, "' is for templates that load others"), ErrorKind::kType);
  }
  tokens_.Fail(absl::StrCat("unknown tag ", Quoted(name)));
}

Statement Parser::If() {
  std::vector<std::pair<const Expr*, Block>> branches;  // null: else
  ++open_ifs_;
  std::string end = "if";
  while (end != "endif") {
    const Expr* test = end == "else" ? nullptr : Tuple(/*with_conditional=*/false);
    branches.emplace_back(test,
                          test == nullptr ? Body({"endif"}) : Body({"elif", "else", "endif"}));
    end = tokens_.Next().text;
  }
  --open_ifs_;
  return [branches = std::move(branches)](Rendering& r) {
    for (const auto& [test, body] : branches) {
      if (test == nullptr || Truth((*test)(r))) return r.Run(body);
    }
  };
}

Statement Parser::ForTag() {
  For& loop = template_.loops.emplace_back();
  loop.target = AssignTarget(/*with_attribute=*/false, "in");
  if (!tokens_.SkipName("in")) tokens_.Unexpected("'in'");
  loop.items = Tuple(/*with_conditional=*/false, "recursive");
  if (tokens_.SkipName("if")) loop.test = Expression();
  loop.recursive = tokens_.SkipName("recursive");
  ++open_loops_;
  loop.body = Body({"endfor", "else"});
  --open_loops_;
  if (tokens_.Next().text == "else") {
    loop.other = loop.recursive ? FunctionBody("endfor") : WholeBody("endfor");
  }
  return [&loop](Rendering& r) { r.RunFor(loop, (*loop.items)(r), 1); };
}

Statement Parser::Set() {
  Target target = AssignTarget(/*with_attribute=*/true);
  if (tokens_.SkipOperator("=")) {
    const Expr* expr = Tuple(/*with_conditional=*/true);
    return [=](Rendering& r) { r.Assign(target, (*expr)(r)); };
  }
  const Expr* filters = Filters(nullptr);
  return [=, body = WholeBody("endset")](Rendering& r) {
    const Value text = r.Capture(body);
    if (r.flow != Rendering::Flow::kNext) return;
    r.captured = text;
    r.Assign(target, filters != nullptr ? (*filters)(r) : text);
  };
}

void Parser::Signature(Macro& macro) {
  tokens_.ExpectOperator("(");
  while (!tokens_.IsOperator(")")) {
    if (!macro.params.empty()) tokens_.ExpectOperator(",");
    macro.params.push_back(AssignName());
    if (tokens_.SkipOperator("=")) {
      macro.defaults.push_back(Expression());
    } else if (!macro.defaults.empty() && macro.defaults.back() != nullptr) {
      tokens_.Fail("a parameter without default follows one that has one");
    } else {
      macro.defaults.push_back(nullptr);
    }
  }
  tokens_.ExpectOperator(")");
}

Statement Parser::MacroTag() {
  Macro& macro = template_.macros.emplace_back();
  macro.name = AssignName();
  Signature(macro);
  MacroBody(macro, "endmacro");
  return [&macro](Rendering& r) { r.heap.SetName(r.frame, macro.name, r.MakeMacro(macro)); };
}

Statement Parser::CallTag() {
  Macro& macro = template_.macros.emplace_back();
  macro.name = "caller";
  if (tokens_.IsOperator("(")) Signature(macro);
  const Call* call = Expression()->call;
  if (call == nullptr) tokens_.Unexpected("a call");
  MacroBody(macro, "endcall");
  return [call, &macro](Rendering& r) {
    const Value callee = (*call->callee)(r);
    Args args = r.EvalArguments(call->arguments);
    args.named.emplace_back("caller", r.MakeMacro(macro));
    r.Print(ToText(r.heap, r.CallValue(callee, std::move(args))));
  };
}

Statement Parser::FilterTag() {
  const Expr* filters = Filters(nullptr, /*expects_pipe=*/false);
  return [=, body = WholeBody("endfilter")](Rendering& r) {
    const Value captured = r.Capture(body);
    if (r.flow != Rendering::Flow::kNext) return;
    r.captured = captured;
    const Value text = (*filters)(r);
    if (!text.is_string()) r.heap.TypeError("a filter block that is no text");
    r.Print(text.text());
  };
}

Statement Parser::With() {
  std::vector<std::pair<std::string, const Expr*>> assignments;
  while (!tokens_.Is(TokenType::kBlockEnd)) {
    if (!assignments.empty()) tokens_.ExpectOperator(",");
    std::string name = AssignName();
    tokens_.ExpectOperator("=");
    assignments.emplace_back(std::move(name), Expression());
  }
  return [assignments = std::move(assignments), body = WholeBody("endwith")](Rendering& r) {
    Frame* const inner = r.heap.MakeFrame(r.frame);
    for (const auto& [name, expr] : assignments) {
      r.heap.SetName(inner, name, (*expr)(r));  // assignments do not see each other
    }
    Frame* const outer = std::exchange(r.frame, inner);
    r.Run(body);
    r.frame = outer;
  };
}

Target Parser::AssignTarget(bool with_attribute, std::string_view end) {
  Target first = OneTarget(with_attribute);
  if (!tokens_.IsOperator(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (tokens_.SkipOperator(",") && !TupleEnds(end) && !tokens_.IsOperator("=")) {
    tuple.parts.push_back(OneTarget(with_attribute));
  }
  return tuple;
}

Target Parser::OneTarget(bool with_attribute) {
  if (tokens_.SkipOperator("(")) {
    const auto nesting = Nest();
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

}  // namespace

std::unique_ptr<const Template> Parse(std::string_view source) {
  auto parsed = std::make_unique<Template>();
  Parser(Lex(source), *parsed).Run();
  return parsed;
}

}  // namespace ovq::jinja
