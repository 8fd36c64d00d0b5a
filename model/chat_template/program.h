// A parsed template as functions of a Rendering, and the parser that makes them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/builtin.h"
#include "model/chat_template/value.h"

namespace ovq::jinja {

class Rendering;
struct Call;

struct Expr {
  int line;
  std::function<Value(Rendering&)> value;
  const Call* call = nullptr;  // of a call

  Value operator()(Rendering& rendering) const;
};

// f(positional, named = ..., *spread, **named_spread)
struct Arguments {
  std::vector<const Expr*> positional;
  std::vector<std::pair<std::string, const Expr*>> named;
  const Expr* spread = nullptr;
  const Expr* named_spread = nullptr;
};

struct Call {
  const Expr* callee;
  Arguments arguments;
};

// The target of a for, set or with: a name, the attribute of a namespace, or several of them.
struct Target {
  std::string name, attribute;
  std::vector<Target> parts;
};

using Statement = std::function<void(Rendering&)>;
using Block = std::vector<Statement>;

// for target in items if test: body, else other
struct For {
  Target target;
  const Expr* items = nullptr;
  const Expr* test = nullptr;
  bool recursive = false;
  Block body, other;
};

struct Macro {
  std::string name;
  std::vector<std::string> params;
  std::vector<const Expr*> defaults;  // parallel to params, null for none
  Block body;
  // Whether the body mentions them; only then the macro accepts such arguments.
  bool varargs = false, kwargs = false, caller = false;
};

// Owns what the functions refer to. They hold pointers, so that the destructor of a deep expression
// does not recurse.
struct Template {
  std::deque<Expr> exprs;
  std::deque<Call> calls;
  std::deque<For> loops;
  std::deque<Macro> macros;
  std::deque<Str> strings;
  Block body;
};

// Parses valid UTF-8. Throws Error: kSyntax, or kType for statements that load other templates.
std::unique_ptr<const Template> Parse(std::string_view source);

// One rendering of a template, with its names and output.
class Rendering {
 public:
  // `variables` is a dict of `heap`, which outlives the rendering.
  Rendering(Heap& heap, Value variables)
      : heap(heap), frame(heap.MakeFrame(nullptr)), variables_(variables) {}

  // Runs the statements up to a break or continue, which stays in `flow`.
  void Run(const Block& block);
  // Runs a for statement over `value`, at recursion depth `depth`; loop(value) calls it too. Its
  // else runs if no body ran to its end; a break or continue there is one of the loop around.
  void RunFor(const For& statement, Value value, int depth);
  // Tests items of a loop until n have passed its `if`, or none is left. Returns whether n have.
  bool FindItems(Loop& loop, size_t n);
  void Print(std::string_view text);
  void Assign(const Target& target, Value value);
  // The output of a block as a value. The block has a scope of its own, and ends as Run says.
  Value Capture(const Block& block);
  Value Find(std::string_view name);
  std::vector<Value> EvalAll(const std::vector<const Expr*>& exprs);
  // Evaluates arguments, after `first` if that is given.
  Args EvalArguments(const Arguments& arguments, Value first = Value());
  Value CallValue(Value callee, Args args);
  Value MakeMacro(const Macro& macro) {
    return heap.MakeCallable({.name = macro.name, .macro = &macro, .frame = frame});
  }

  Heap& heap;
  Frame* frame;
  std::string output;
  enum class Flow { kNext, kBreak, kContinue } flow = Flow::kNext;
  Value captured;  // input of the first filter of a block

 private:
  // Runs `run` with an output of its own, which it returns as a value, and the scope `scope`.
  template <class RunBody>
  Value Apart(Frame* scope, RunBody run);
  Value CallLoop(const Loop& loop, const Args& args);
  Value CallMacro(const Callable& callable, Args args);

  const Value variables_;
};

}  // namespace ovq::jinja
