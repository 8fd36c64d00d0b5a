// Rendering of program.h.
#include <algorithm>
#include <utility>

#include "model/chat_template/operators.h"
#include "model/chat_template/program.h"

namespace ovq::jinja {

Value Expr::operator()(Rendering& rendering) const {
  const Level level(rendering.heap, line);
  return value(rendering);
}

void Rendering::Run(const Block& block) {
  for (const Statement& statement : block) {
    statement(*this);
    if (flow != Flow::kNext) return;
  }
}

void Rendering::RunFor(const For& statement, Value value, int depth) {
  Frame* const outer = frame;
  Loop& loop = *heap.MakeLoop({.statement = &statement,
                               .rendering = this,
                               .frame = outer,
                               .items = Items(heap, value),
                               .depth = depth});
  if (statement.test != nullptr) loop.untested.swap(loop.items);
  bool runs_else = true;  // no body has run to its end
  for (; FindItems(loop, loop.at + 1); ++loop.at) {
    frame = heap.MakeFrame(outer);
    heap.SetName(frame, "loop", Value::FromPointer(Kind::kLoop, &loop));
    Assign(statement.target, loop.items[loop.at]);
    Run(statement.body);
    const Flow left = std::exchange(flow, Flow::kNext);
    if (left == Flow::kBreak) break;
    if (left == Flow::kNext) runs_else = false;
  }
  if (runs_else) {
    frame = heap.MakeFrame(outer);
    Run(statement.other);
  }
  frame = outer;
}

bool Rendering::FindItems(Loop& loop, size_t n) {
  Frame* const outer = frame;
  while (loop.items.size() < n && loop.n_tested < loop.untested.size()) {
    const Value item = loop.untested[loop.n_tested++];
    frame = heap.MakeFrame(loop.frame);
    Assign(loop.statement->target, item);
    if (!Truth((*loop.statement->test)(*this))) continue;
    heap.Spend(sizeof(Value));
    loop.items.push_back(item);
  }
  frame = outer;
  return loop.items.size() >= n;
}

void Rendering::Print(std::string_view text) {
  heap.Spend(text.size());
  const size_t most = heap.limits.max_output_bytes;
  if (text.size() > most - output.size()) {
    heap.Fail(ErrorKind::kLimit, "more than ", most, " bytes of text");
  }
  output += text;
}

void Rendering::Assign(const Target& target, Value value) {
  if (!target.attribute.empty()) {
    const Value object = Find(target.name);
    if (!object.is(Kind::kNamespace)) {
      heap.Fail(ErrorKind::kRaised, "cannot assign attribute on non-namespace object");
    }
    return heap.Set(object, heap.Text(target.attribute), value);
  }
  if (target.parts.empty()) return heap.SetName(frame, target.name, value);
  const std::vector<Value> items = Items(heap, value);
  if (items.size() != target.parts.size()) {
    heap.ValueError(items.size(), " values for ", target.parts.size(), " names");
  }
  for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i]);
}

template <class RunBody>
Value Rendering::Apart(Frame* scope, RunBody run) {
  std::string outer_output = std::exchange(output, "");
  Frame* const outer = std::exchange(frame, scope);
  run();
  frame = outer;
  return heap.Text(std::exchange(output, std::move(outer_output)));
}

Value Rendering::Capture(const Block& block) {
  return Apart(heap.MakeFrame(frame), [&] { Run(block); });
}

Value Rendering::Find(std::string_view name) {
  for (const Frame* scope = frame; scope != nullptr; scope = scope->parent) {
    heap.Step();
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return found->second;
  }
  if (const Value* found = variables_.As<Dict>().FindName(name); found != nullptr) return *found;
  if (const Builtin* global = FindGlobal(name); global != nullptr) {
    return heap.MakeCallable({.name = global->name, .builtin = global});
  }
  return heap.MakeUndefined("'" + std::string(name) + "' is undefined");
}

std::vector<Value> Rendering::EvalAll(const std::vector<const Expr*>& exprs) {
  std::vector<Value> values;
  for (const Expr* expr : exprs) values.push_back((*expr)(*this));
  return values;
}

Args Rendering::EvalArguments(const Arguments& arguments, Value first) {
  Args args = {EvalAll(arguments.positional), {}};
  if (first.given()) args.at.insert(args.at.begin(), first);
  for (const auto& [name, expr] : arguments.named) args.named.emplace_back(name, (*expr)(*this));
  if (arguments.spread != nullptr) {
    const std::vector<Value> more = Items(heap, (*arguments.spread)(*this));
    args.at.insert(args.at.end(), more.begin(), more.end());
  }
  if (arguments.named_spread == nullptr) return args;
  const Value more = (*arguments.named_spread)(*this);
  if (!more.is(Kind::kDict)) heap.TypeError("argument after ** must be a mapping");
  for (const auto& [key, value] : more.entries()) {
    if (!key.is_string()) heap.TypeError("keywords must be strings");
    heap.Step();
    args.named.emplace_back(key.text(), value);
  }
  return args;
}

Value Rendering::CallValue(Value callee, Args args) {
  const Level level(heap);
  heap.RequireDefined(callee);
  if (callee.is(Kind::kLoop)) return CallLoop(callee.As<Loop>(), args);
  if (!callee.is(Kind::kCallable)) {
    heap.TypeError("'", TypeName(callee), "' object is not callable");
  }
  const auto& callable = callee.As<Callable>();
  if (callable.macro != nullptr) return CallMacro(callable, std::move(args));
  if (callable.self.given()) args.at.insert(args.at.begin(), callable.self);
  return callable.builtin->Call(heap, std::move(args));
}

Value Rendering::CallLoop(const Loop& loop, const Args& args) {
  if (!loop.statement->recursive) {
    heap.TypeError("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (args.at.size() != 1 || !args.named.empty()) heap.TypeError("loop() takes one argument");
  return Apart(heap.MakeFrame(loop.frame),
               [&] { RunFor(*loop.statement, args.at[0], loop.depth + 1); });
}

Value Rendering::CallMacro(const Callable& callable, Args args) {
  const Macro& macro = *callable.macro;
  const auto fail = [&](const auto&... what) {
    heap.TypeError("macro '", macro.name, "' ", what...);
  };
  const size_t n_params = macro.params.size();
  Frame* const caller_frame = std::exchange(frame, heap.MakeFrame(callable.frame));
  for (size_t i = 0; i < n_params; ++i) {
    const std::string& name = macro.params[i];
    Value value = args.ConsumeNamed(name);
    if (i < args.at.size()) {
      if (value.given()) fail("got two values for the argument ", Quoted(name));
      value = args.at[i];
    }
    if (!value.given() && macro.defaults[i] != nullptr) value = (*macro.defaults[i])(*this);
    if (!value.given()) value = heap.MakeUndefined("parameter '" + name + "' was not provided");
    heap.SetName(frame, name, value);
  }
  if (macro.caller) {
    const Value caller = args.ConsumeNamed("caller");
    heap.SetName(frame, "caller",
                 caller.given() ? caller : heap.MakeUndefined("No caller defined"));
  }
  if (macro.kwargs) {
    const Value kwargs = heap.MakeDict();
    heap.SetAll(kwargs, args.named);
    heap.SetName(frame, "kwargs", kwargs);
  } else if (!args.named.empty()) {
    fail("takes no keyword argument ", Quoted(args.named.front().first));
  }
  if (macro.varargs) {
    args.at.erase(args.at.begin(), args.at.begin() + std::min(n_params, args.at.size()));
    heap.SetName(frame, "varargs", heap.Make(Kind::kTuple, std::move(args.at)));
  } else if (args.at.size() > n_params) {
    fail("takes not more than ", n_params, " argument(s)");
  }
  const Value text = Capture(macro.body);
  frame = caller_frame;
  return text;
}

}  // namespace ovq::jinja
