// Evaluator's statements.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/evaluator.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"

namespace ovq::jinja {

void Evaluator::Print(std::string_view text) {
  heap_.Spend(text.size());
  if (text.size() > heap_.limits().max_output_bytes - output_.size()) {
    heap_.Fail(ErrorKind::kLimit,
               absl::StrCat("more than ", heap_.limits().max_output_bytes, " bytes of text"));
  }
  output_ += text;
}

Evaluator::Flow Evaluator::Run(const Block& block) {
  for (const Statement* statement : block) {
    const Flow flow = Run(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::Run(const Statement& statement) {
  const Level level(heap_, statement.line);
  switch (statement.kind) {
    case StatementKind::kText:
      Print(statement.text);
      break;
    case StatementKind::kPrint: {
      const Value value = Eval(*statement.expr);
      Print(value.is_string() ? value.text() : ToText(heap_, value));
      break;
    }
    case StatementKind::kIf:
      return RunIf(statement);
    case StatementKind::kFor:
      RunFor(statement, Eval(*statement.expr), 1);
      break;
    case StatementKind::kSet:
      RunSet(statement);
      break;
    case StatementKind::kMacro:
      heap_.SetName(frame_, statement.macro->name, MakeMacro(*statement.macro));
      break;
    case StatementKind::kCall: {
      const Value callee = Eval(*statement.expr->parts[0]);
      Args args = EvalArguments(statement.expr->arguments);
      args.named.emplace_back("caller", MakeMacro(*statement.macro));
      Print(ToText(heap_, Call(callee, std::move(args))));
      break;
    }
    case StatementKind::kFilter: {
      const Value text = EvalFilter(*statement.expr, Captured(statement.body));
      if (!text.is_string()) heap_.TypeError("a filter block that is no text");
      Print(text.text());
      break;
    }
    case StatementKind::kWith:
      RunWith(statement);
      break;
    case StatementKind::kScope:
      Print(Captured(statement.body).text());
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::RunIf(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.test == nullptr || Truth(Eval(*branch.test))) return Run(branch.body);
  }
  return Flow::kNext;
}

void Evaluator::RunFor(const Statement& statement, Value value, int depth) {
  Frame* const outer = frame_;
  std::vector<Value> items = Items(heap_, value);
  if (statement.test != nullptr) {
    std::erase_if(items, [&](Value item) {
      frame_ = heap_.MakeFrame(outer);
      Assign(statement.target, item);
      return !Truth(Eval(*statement.test));
    });
  }
  Loop& loop = *heap_.MakeLoop();
  loop.statement = &statement;
  loop.frame = outer;
  loop.items = std::move(items);
  loop.depth = depth;
  for (; loop.at < loop.items.size(); ++loop.at) {
    frame_ = heap_.MakeFrame(outer);
    heap_.SetName(frame_, "loop", Value::FromPointer(Kind::kLoop, &loop));
    Assign(statement.target, loop.items[loop.at]);
    if (Run(statement.body) == Flow::kBreak) break;
  }
  if (loop.items.empty()) {
    frame_ = heap_.MakeFrame(outer);
    Run(statement.other);
  }
  frame_ = outer;
}

void Evaluator::RunSet(const Statement& statement) {
  if (!statement.is_block) return Assign(statement.target, Eval(*statement.expr));
  const Value text = Captured(statement.body);
  Assign(statement.target, statement.expr == nullptr ? text : EvalFilter(*statement.expr, text));
}

void Evaluator::RunWith(const Statement& statement) {
  Frame* const outer = frame_;
  Frame* const inner = heap_.MakeFrame(outer);
  for (const auto& [target, expr] : statement.assignments) {
    heap_.SetName(inner, target.name, Eval(*expr));  // assignments do not see each other
  }
  frame_ = inner;
  Run(statement.body);
  frame_ = outer;
}

void Evaluator::Assign(const Target& target, Value value) {
  if (!target.attribute.empty()) {
    const Value object = NameValue(target.name);
    if (object.kind() != Kind::kNamespace) {
      heap_.Fail(ErrorKind::kRaised, "cannot assign attribute on non-namespace object");
    }
    heap_.Set(object, heap_.Text(target.attribute), value);
  } else if (target.parts.empty()) {
    heap_.SetName(frame_, target.name, value);
  } else {
    const std::vector<Value> items = Items(heap_, value);
    if (items.size() != target.parts.size()) {
      heap_.Fail(ErrorKind::kType, absl::StrCat("ValueError: ", items.size(), " values for ",
                                                target.parts.size(), " names"));
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i]);
  }
}

Value Evaluator::Captured(const Block& block) {
  std::string outer_output = std::exchange(output_, "");
  Frame* const outer = std::exchange(frame_, heap_.MakeFrame(frame_));
  Run(block);
  frame_ = outer;
  return heap_.Text(std::exchange(output_, std::move(outer_output)));
}

Value Evaluator::MakeMacro(const Macro& macro) {
  return heap_.MakeCallable({.name = macro.name, .macro = &macro, .frame = frame_});
}

Value Evaluator::CallMacro(const Callable& callable, Args args) {
  const Macro& macro = *callable.macro;
  const auto fail = [&](std::string_view what) {
    heap_.TypeError(absl::StrCat("macro '", macro.name, "' ", std::string(what)));
  };
  const size_t n_params = macro.params.size();
  Frame* const frame = heap_.MakeFrame(callable.frame);
  Frame* const caller_frame = std::exchange(frame_, frame);
  for (size_t i = 0; i < n_params; ++i) {
    const std::string& name = macro.params[i];
    const Value named = args.ConsumeNamed(name);
    if (i < args.at.size() && named.given()) {
      fail(absl::StrCat("got two values for the argument ", Quoted(name)));
    }
    Value value = i < args.at.size() ? args.at[i] : named;
    if (!value.given() && macro.defaults[i] != nullptr) value = Eval(*macro.defaults[i]);
    if (!value.given()) {
      value = heap_.MakeUndefined(absl::StrCat("parameter '", name, "' was not provided"));
    }
    heap_.SetName(frame, name, value);
  }
  if (macro.caller) {
    const Value caller = args.ConsumeNamed("caller");
    heap_.SetName(frame, "caller",
                  caller.given() ? caller : heap_.MakeUndefined("No caller defined"));
  }
  if (macro.kwargs) {
    const Value kwargs = heap_.MakeDict();
    for (const auto& [name, value] : args.named) {
      heap_.Set(kwargs, heap_.Text(std::string(name)), value);
    }
    heap_.SetName(frame, "kwargs", kwargs);
  } else if (!args.named.empty()) {
    fail(absl::StrCat("takes no keyword argument ", Quoted(args.named.front().first)));
  }
  if (macro.varargs) {
    const int64_t n_taken = std::min(n_params, args.at.size());
    heap_.SetName(frame, "varargs",
                  heap_.Make(Kind::kTuple, {args.at.begin() + n_taken, args.at.end()}));
  } else if (args.at.size() > n_params) {
    fail(absl::StrCat("takes not more than ", n_params, " argument(s)"));
  }
  const Value text = Captured(macro.body);
  frame_ = caller_frame;
  return text;
}

}  // namespace ovq::jinja
