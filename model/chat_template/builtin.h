// Builtin: a builtin function, method, filter or test, with the binding of arguments to its
// parameters; and the tables of all of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/value.h"

namespace ovq::jinja {

struct Args {
  std::vector<Value> at;
  std::vector<std::pair<std::string_view, Value>> named;

  Value operator[](size_t i) const { return i < at.size() ? at[i] : Value(); }
  // The functions below read parameter i, or return `otherwise` if it was not given.
  Value Or(size_t i, Value otherwise) const { return (*this)[i].given() ? at[i] : otherwise; }
  int64_t IntegerOr(Heap& heap, size_t i, int64_t otherwise) const;
  bool Flag(size_t i) const { return Truth(Or(i, Value::Bool(false))); }
  // Removes and returns a named argument; kMissing if it was not given.
  Value ConsumeNamed(std::string_view name);
};

struct Builtin {
  std::string_view name;
  // Parameter names separated by blanks: "name?" is optional, "*" accepts further positional
  // arguments, "**" further named ones.
  std::string_view params;
  // args: in the order of params, kMissing if not given, followed by those of "*".
  Value (*function)(Heap& heap, const Args& args);

  // Binds arguments to the parameters and calls the function. kType if they do not fit.
  Value Call(Heap& heap, Args args) const;
};

// The functions below find the entry of a name; null if there is none.
const Builtin* FindIn(std::span<const Builtin> table, std::string_view name);
const Builtin* FindGlobal(std::string_view name);
const Builtin* FindMethod(Kind kind, std::string_view name);  // of values of this kind
const Builtin* FindFilter(std::string_view name);             // value | filter
const Builtin* FindTest(std::string_view name);               // value is test

struct BuiltinKind {
  const char* name;
  const Builtin* (*find)(std::string_view name);
};
inline constexpr BuiltinKind kFilter = {"filter", FindFilter}, kTest = {"test", FindTest};
// Calls the filter or the test of that name. kSyntax if there is none.
Value CallNamed(Heap& heap, const BuiltinKind& kind, std::string_view name, Args args);

}  // namespace ovq::jinja
