// The syntax tree of a template, and its parser. Nodes belong to the Template and refer to each
// other.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/value.h"

namespace ovq::jinja {

struct Expr;
struct Macro;

// f(positional, named = ..., *spread, **named_spread)
struct Arguments {
  std::vector<const Expr*> positional;
  std::vector<std::pair<std::string, const Expr*>> named;
  const Expr* spread = nullptr;
  const Expr* named_spread = nullptr;
};

enum class ExprKind {
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,       // parts: key, value, key, value
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], null where left out
  kCall,       // parts[0](arguments)
  kFilter,     // parts[0] | name(arguments); parts[0] is null in {% filter %} and {% set %}
  kTest,       // parts[0] is name(arguments)
  kUnary,      // name: + - not
  kBinary,     // name: + - * / // % **
  kCompare,    // parts[0] names[0] parts[1] names[1] parts[2] ...
  kConcat,     // all parts, joined by ~
  kAnd,
  kOr,
  kConditional,  // parts[1] if parts[0] else parts[2], which may be null
};

struct Expr {
  ExprKind kind;
  int line;
  std::string name;
  Value value;                       // the value of a literal
  const Builtin* builtin = nullptr;  // the filter or test; null: none has that name
  std::vector<const Expr*> parts;
  std::vector<std::string> names;
  Arguments arguments;
};

// The target of a for, set or with: a name, the attribute of a namespace, or several of them.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;
};

using Block = std::vector<const Statement*>;

enum class StatementKind {
  kText,
  kPrint,   // expr
  kIf,      // branches
  kFor,     // target in expr if test: body, else other
  kSet,     // target = expr; target = body | expr where expr is null or a filter
  kMacro,   // macro
  kCall,    // call(macro) expr
  kFilter,  // body | expr
  kWith,    // assignments: body
  kScope,   // body: a generation block
  kBreak,
  kContinue,
};

struct Branch {
  const Expr* test;  // null: else
  Block body;
};

struct Statement {
  StatementKind kind;
  int line;
  std::string text;
  const Expr* expr = nullptr;
  const Expr* test = nullptr;
  Target target;
  bool is_block = false;   // kSet
  bool recursive = false;  // kFor
  Block body, other;
  std::vector<Branch> branches;
  std::vector<std::pair<Target, const Expr*>> assignments;
  const Macro* macro = nullptr;
};

struct Macro {
  std::string name;
  std::vector<std::string> params;
  std::vector<const Expr*> defaults;  // parallel to params, null for none
  Block body;
  // Whether the body mentions them; only then the macro accepts such arguments.
  bool varargs = false, kwargs = false, caller = false;
};

struct Template {
  std::deque<Expr> exprs;
  std::deque<Statement> statements;
  std::deque<Macro> macros;
  std::deque<Str> strings;
  Block body;
};

// Parses valid UTF-8. Throws Error: kSyntax, or kType for statements that load other templates.
std::unique_ptr<const Template> Parse(std::string_view source);

}  // namespace ovq::jinja
