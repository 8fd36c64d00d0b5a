// Parse of ast.h: the statements of a template.
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "model/chat_template/expr_parser.h"

namespace ovq::jinja {
namespace {

class Parser : ExprParser {
 public:
  using ExprParser::ExprParser;

  void Run() { template_.body = Statements({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  Statement* Make(StatementKind kind) {
    Statement& statement = template_.statements.emplace_back();
    statement.kind = kind;
    statement.line = tokens_.previous_line();
    return &statement;
  }

  // Parses up to a tag that begins with one of `ends`, which becomes the current token; without
  // `ends`, to the end of the template.
  Block Statements(Ends ends) {
    const Nesting nesting(*this);
    Block block;
    while (true) {
      if (tokens_.Is(TokenType::kEnd)) {
        if (ends.size() == 0) return block;
        tokens_.Unexpected(absl::StrCat("a tag ", absl::StrJoin(Names(ends), " or ")));
      }
      if (tokens_.Is(TokenType::kData)) {
        Statement* text = Make(StatementKind::kText);
        text->text = tokens_.Next().text;
        block.push_back(text);
      } else if (tokens_.Is(TokenType::kPrintBegin)) {
        tokens_.Next();
        Statement* print = Make(StatementKind::kPrint);
        print->expr = Tuple(/*with_conditional=*/true);
        tokens_.Expect(TokenType::kPrintEnd, "'}}'");
        block.push_back(print);
      } else {
        tokens_.Next();
        for (const std::string_view end : ends) {
          if (tokens_.IsName(end)) return block;
        }
        block.push_back(Tag());
        tokens_.Expect(TokenType::kBlockEnd, "'%}'");
      }
    }
  }
  static std::vector<std::string> Names(Ends ends) { return {ends.begin(), ends.end()}; }

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

  const Statement* Tag() {
    const std::string name = tokens_.current().text;
    tokens_.Expect(TokenType::kName, "the name of a tag");
    if (name == "if") return If();
    if (name == "for") return For();
    if (name == "set") return Set();
    if (name == "macro") return MacroTag();
    if (name == "call") return CallTag();
    if (name == "filter") return FilterTag();
    if (name == "with") return With();
    if (name == "generation") return Generation();
    if (name == "break" || name == "continue") {
      if (open_loops_ == 0) tokens_.Fail(absl::StrCat("'", name, "' outside of a loop"));
      return Make(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
    }
    for (const std::string_view loads : {"include", "import", "from", "extends", "block"}) {
      if (name != loads) continue;
      tokens_.Fail(absl::StrCat("'", name, "' is for templates that load others"),
                   ErrorKind::kType);
    }
    tokens_.Fail(absl::StrCat("unknown tag ", Quoted(name)));
  }

  const Statement* If() {
    Statement* statement = Make(StatementKind::kIf);
    ++open_ifs_;
    std::string end = "if";
    while (end != "endif") {
      const Expr* test = end == "else" ? nullptr : Tuple(/*with_conditional=*/false);
      Block body = test == nullptr ? Body({"endif"}) : Body({"elif", "else", "endif"});
      statement->branches.push_back({test, std::move(body)});
      end = tokens_.Next().text;
    }
    --open_ifs_;
    return statement;
  }

  const Statement* For() {
    Statement* statement = Make(StatementKind::kFor);
    statement->target = AssignTarget(/*with_attribute=*/false, "in");
    if (!tokens_.SkipName("in")) tokens_.Unexpected("'in'");
    statement->expr = Tuple(/*with_conditional=*/false, "recursive");
    if (tokens_.SkipName("if")) statement->test = Expression();
    statement->recursive = tokens_.SkipName("recursive");
    ++open_loops_;
    statement->body = Body({"endfor", "else"});
    --open_loops_;
    if (tokens_.Next().text == "else") statement->other = WholeBody("endfor");
    return statement;
  }

  const Statement* Set() {
    Statement* statement = Make(StatementKind::kSet);
    statement->target = AssignTarget(/*with_attribute=*/true);
    if (tokens_.SkipOperator("=")) {
      statement->expr = Tuple(/*with_conditional=*/true);
      return statement;
    }
    statement->is_block = true;
    statement->expr = Filters(nullptr);
    statement->body = WholeBody("endset");
    return statement;
  }

  // Parses a body that is a function to Jinja: no break or continue can leave a loop from within.
  Block FunctionBody(Macro& macro, std::string_view end) {
    const int loops = std::exchange(open_loops_, 0);
    open_macros_.push_back(&macro);
    Block body = WholeBody(end);
    open_macros_.pop_back();
    open_loops_ = loops;
    return body;
  }

  void Signature(Macro& macro) {
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

  const Statement* MacroTag() {
    Statement* statement = Make(StatementKind::kMacro);
    Macro& macro = template_.macros.emplace_back();
    macro.name = AssignName();
    Signature(macro);
    macro.body = FunctionBody(macro, "endmacro");
    statement->macro = &macro;
    return statement;
  }

  const Statement* CallTag() {
    Statement* statement = Make(StatementKind::kCall);
    Macro& macro = template_.macros.emplace_back();
    macro.name = "caller";
    if (tokens_.IsOperator("(")) Signature(macro);
    statement->expr = Expression();
    if (statement->expr->kind != ExprKind::kCall) tokens_.Unexpected("a call");
    macro.body = FunctionBody(macro, "endcall");
    statement->macro = &macro;
    return statement;
  }

  const Statement* FilterTag() {
    Statement* statement = Make(StatementKind::kFilter);
    statement->expr = Filters(nullptr, /*expects_pipe=*/false);
    statement->body = WholeBody("endfilter");
    return statement;
  }

  const Statement* With() {
    Statement* statement = Make(StatementKind::kWith);
    while (!tokens_.Is(TokenType::kBlockEnd)) {
      if (!statement->assignments.empty()) tokens_.ExpectOperator(",");
      Target target = OneName();
      tokens_.ExpectOperator("=");
      statement->assignments.emplace_back(std::move(target), Expression());
    }
    statement->body = WholeBody("endwith");
    return statement;
  }
  Target OneName() {
    Target target;
    target.name = AssignName();
    return target;
  }

  const Statement* Generation() {
    Statement* statement = Make(StatementKind::kScope);
    const int loops = std::exchange(open_loops_, 0);  // the body is a function to Jinja
    statement->body = WholeBody("endgeneration");
    open_loops_ = loops;
    return statement;
  }

  int open_loops_ = 0;
};

}  // namespace

std::unique_ptr<const Template> Parse(std::string_view source) {
  auto parsed = std::make_unique<Template>();
  Parser(Lex(source), *parsed).Run();
  return parsed;
}

}  // namespace ovq::jinja
