// Builtin: a builtin function, method, filter or test, with the binding of arguments to its
// parameters; and the tables of all of them.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/heap.h"

namespace ovq::jinja {

// Everything a builtin may use.
struct Context {
  Heap& heap;
  const std::tm& now;  // the time of strftime_now
};

struct Args {
  std::vector<Value> at;
  std::vector<std::pair<std::string_view, Value>> named;

  Value operator[](size_t i) const { return i < at.size() ? at[i] : Value(); }
  // Integer parameter i, or `otherwise` if it was not given.
  int64_t IntegerOr(Heap& heap, size_t i, int64_t otherwise) const;
  // Removes and returns a named argument; kMissing if it was not given.
  Value ConsumeNamed(std::string_view name);
  bool TruthOr(size_t i, bool otherwise) const {
    return (*this)[i].given() ? Truth(at[i]) : otherwise;
  }
};

struct Builtin {
  std::string_view name;
  // Parameter names separated by blanks: "name?" is optional, "*" accepts further positional
  // arguments, "**" further named ones.
  std::string_view params;
  // args: in the order of params, kMissing if not given, followed by those of "*".
  Value (*call)(Context& context, const Args& args);
};

// Binds arguments to the parameters of `builtin`. kType if they do not fit.
Args Bind(Heap& heap, const Builtin& builtin, Args args);

// The functions below find the entry of a name; null if there is none.
const Builtin* FindGlobal(std::string_view name);
// A method of str, list, tuple, dict or loop.
const Builtin* FindMethod(Kind kind, std::string_view name);
const Builtin* FindStrMethod(std::string_view name);
const Builtin* FindFilter(std::string_view name);  // value | filter
const Builtin* FindListFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);  // value is test
template <class Table>
const Builtin* FindIn(const Table& table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

// Calls the filter or the test of that name. kSyntax if there is none.
Value CallFilter(Context& context, std::string_view name, Args args);
bool CallTest(Context& context, std::string_view name, Args args);

}  // namespace ovq::jinja
