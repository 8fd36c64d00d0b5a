// Evaluator: one rendering of a template, with its names and output.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/ast.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/heap.h"

namespace ovq::jinja {

class Evaluator {
 public:
  // `variables` is a dict of `heap`, `now` the time of strftime_now. All arguments outlive the
  // evaluator.
  Evaluator(Heap& heap, const Template& parsed, Value variables, const std::tm& now)
      : heap_(heap), context_{heap, now}, template_(parsed), variables_(variables) {}

  std::string Run();

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Value Call(Value callee, Args args);
  Value Eval(const Expr& expr);
  Value EvalOr(const Expr* expr, Value otherwise) { return expr ? Eval(*expr) : otherwise; }
  Value NameValue(const std::string& name);
  Value EvalDict(const Expr& expr);
  Value EvalCompare(const Expr& expr);
  Value EvalConcat(const Expr& expr);
  std::vector<Value> EvalAll(const std::vector<const Expr*>& exprs);
  // Evaluates arguments, after `first` if that is given.
  Args EvalArguments(const Arguments& arguments, Value first = Value());
  // Applies the chain of filters `expr` to `input`.
  Value EvalFilter(const Expr& expr, Value input);

  Flow Run(const Block& block);
  Flow Run(const Statement& statement);
  Flow RunIf(const Statement& statement);
  // Runs a for statement over `value`, at recursion depth `depth`; loop(value) calls it too.
  void RunFor(const Statement& statement, Value value, int depth);
  void RunSet(const Statement& statement);
  void RunWith(const Statement& statement);
  void Assign(const Target& target, Value value);
  // The output of a block as a value. The block has a scope of its own.
  Value Captured(const Block& block);
  Value CallMacro(const Callable& callable, Args args);
  Value MakeMacro(const Macro& macro);
  void Print(std::string_view text);

  Heap& heap_;
  Context context_;
  const Template& template_;
  const Value variables_;
  Frame* frame_ = nullptr;
  std::string output_;
};

}  // namespace ovq::jinja
