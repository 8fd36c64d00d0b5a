#include "model/chat_template/evaluator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"

namespace ovq::jinja {

std::string Evaluator::Run() {
  frame_ = heap_.MakeFrame(nullptr);
  Run(template_.body);
  return std::move(output_);
}

Value Evaluator::Eval(const Expr& expr) {
  const Level level(heap_, expr.line);
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.value;
    case ExprKind::kName:
      return NameValue(expr.name);
    case ExprKind::kList:
      return heap_.Make(Kind::kList, EvalAll(expr.parts));
    case ExprKind::kTuple:
      return heap_.Make(Kind::kTuple, EvalAll(expr.parts));
    case ExprKind::kDict:
      return EvalDict(expr);
    case ExprKind::kAttribute:
      return Attribute(heap_, Eval(*expr.parts[0]), expr.name);
    case ExprKind::kItem: {
      const Value value = Eval(*expr.parts[0]);
      return Item(heap_, value, Eval(*expr.parts[1]));
    }
    case ExprKind::kSlice: {
      const Value value = Eval(*expr.parts[0]);
      const Value from = EvalOr(expr.parts[1], Value::None());
      const Value to = EvalOr(expr.parts[2], Value::None());
      return Slice(heap_, value, from, to, EvalOr(expr.parts[3], Value::None()));
    }
    case ExprKind::kCall: {
      const Value callee = Eval(*expr.parts[0]);
      return Call(callee, EvalArguments(expr.arguments));
    }
    case ExprKind::kFilter:
      return EvalFilter(expr, Value());
    case ExprKind::kTest:
      return Value::Bool(
          CallTest(context_, expr.name, EvalArguments(expr.arguments, Eval(*expr.parts[0]))));
    case ExprKind::kUnary:
      return Unary(heap_, expr.name, Eval(*expr.parts[0]));
    case ExprKind::kBinary: {
      const Value left = Eval(*expr.parts[0]);
      return Binary(heap_, expr.name, left, Eval(*expr.parts[1]));
    }
    case ExprKind::kCompare:
      return EvalCompare(expr);
    case ExprKind::kConcat:
      return EvalConcat(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      const Value left = Eval(*expr.parts[0]);
      return Truth(left) == (expr.kind == ExprKind::kOr) ? left : Eval(*expr.parts[1]);
    }
    case ExprKind::kConditional:
      if (Truth(Eval(*expr.parts[0]))) return Eval(*expr.parts[1]);
      if (expr.parts[2] != nullptr) return Eval(*expr.parts[2]);
      return heap_.MakeUndefined("the inline if-expression has no else section");
  }
  return Value();
}

Value Evaluator::NameValue(const std::string& name) {
  for (const Frame* frame = frame_; frame != nullptr; frame = frame->parent) {
    heap_.Step();
    const auto found = frame->names.find(name);
    if (found != frame->names.end()) return found->second;
  }
  if (const Value* found = variables_.dict().FindName(name); found != nullptr) return *found;
  if (const Builtin* global = FindGlobal(name); global != nullptr) {
    return heap_.MakeCallable({.name = global->name, .builtin = global});
  }
  return heap_.MakeUndefined(absl::StrCat("'", name, "' is undefined"));
}

Value Evaluator::EvalDict(const Expr& expr) {
  const Value dict = heap_.MakeDict();
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    const Value key = Eval(*expr.parts[i]);
    heap_.Set(dict, key, Eval(*expr.parts[i + 1]));
  }
  return dict;
}

Value Evaluator::EvalCompare(const Expr& expr) {
  Value left = Eval(*expr.parts[0]);
  for (size_t i = 0; i < expr.names.size(); ++i) {
    const Value right = Eval(*expr.parts[i + 1]);
    if (!Compare(heap_, expr.names[i], left, right)) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Value Evaluator::EvalConcat(const Expr& expr) {
  std::string text;
  for (const Value part : EvalAll(expr.parts)) text += ToText(heap_, part);
  return heap_.Text(std::move(text));
}

std::vector<Value> Evaluator::EvalAll(const std::vector<const Expr*>& exprs) {
  std::vector<Value> values;
  for (const Expr* expr : exprs) values.push_back(Eval(*expr));
  return values;
}

Args Evaluator::EvalArguments(const Arguments& arguments, Value first) {
  Args args;
  if (first.given()) args.at.push_back(first);
  for (const Expr* expr : arguments.positional) args.at.push_back(Eval(*expr));
  for (const auto& [name, expr] : arguments.named) args.named.emplace_back(name, Eval(*expr));
  if (arguments.spread != nullptr) {
    const std::vector<Value> more = Items(heap_, Eval(*arguments.spread));
    args.at.insert(args.at.end(), more.begin(), more.end());
  }
  if (arguments.named_spread != nullptr) {
    const Value more = Eval(*arguments.named_spread);
    if (more.kind() != Kind::kDict) heap_.TypeError("argument after ** must be a mapping");
    for (const auto& [key, value] : more.dict().entries()) {
      if (!key.is_string()) heap_.TypeError("keywords must be strings");
      heap_.Step();
      args.named.emplace_back(key.text(), value);
    }
  }
  return args;
}

Value Evaluator::EvalFilter(const Expr& expr, Value input) {
  const Level level(heap_, expr.line);
  if (const Expr* inner = expr.parts[0]; inner != nullptr) {
    input = input.given() ? EvalFilter(*inner, input) : Eval(*inner);
  }
  return CallFilter(context_, expr.name, EvalArguments(expr.arguments, input));
}

Value Evaluator::Call(Value callee, Args args) {
  const Level level(heap_);
  if (callee.is_undefined()) heap_.Undefined(callee);
  if (callee.kind() == Kind::kLoop) {
    const Loop& loop = callee.loop();
    if (!loop.statement->recursive) {
      heap_.TypeError("The loop must have the 'recursive' marker to be called recursively.");
    }
    if (args.at.size() != 1 || !args.named.empty()) heap_.TypeError("loop() takes one argument");
    Frame* const caller = std::exchange(frame_, heap_.MakeFrame(loop.frame));
    std::string outer = std::exchange(output_, "");
    RunFor(*loop.statement, args.at[0], loop.depth + 1);
    frame_ = caller;
    return heap_.Text(std::exchange(output_, std::move(outer)));
  }
  if (callee.kind() != Kind::kCallable) {
    heap_.TypeError(absl::StrCat("'", TypeName(callee), "' object is not callable"));
  }
  const Callable& callable = callee.callable();
  if (callable.macro != nullptr) return CallMacro(callable, std::move(args));
  if (callable.self.given()) args.at.insert(args.at.begin(), callable.self);
  return callable.builtin->call(context_, Bind(heap_, *callable.builtin, std::move(args)));
}

}  // namespace ovq::jinja
