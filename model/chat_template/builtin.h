// Functions, methods, filters and tests that are ours: tables of them, and how arguments find their
// parameters.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/chat_template/heap.h"

namespace ovq::jinja {

// What a builtin may use.
struct Context {
  Heap& heap;
  const std::tm& now;  // what strftime_now shows
};

struct Args {
  std::vector<Value> at;
  std::vector<std::pair<std::string_view, Value>> named;

  Value operator[](size_t i) const { return i < at.size() ? at[i] : Value(); }
  // A parameter that was not given is `otherwise`.
  int64_t IntegerOr(Heap& heap, size_t i, int64_t otherwise) const;
  bool TruthOr(size_t i, bool otherwise) const {
    return (*this)[i].given() ? Truth(at[i]) : otherwise;
  }
};

struct Builtin {
  std::string_view name;
  // Parameters with blanks between them: "?" behind those that may be left out, "*" for any more
  // by position, "**" by name.
  std::string_view params;
  // The arguments in the order of params, those not given kMissing; behind them what "*" takes.
  Value (*call)(Context& context, const Args& args);
};

// The arguments as `builtin` wants them. kType where they do not fit.
Args Bind(Heap& heap, const Builtin& builtin, Args args);

// The entry of that name; null if there is none.
template <class Table>
const Builtin* FindIn(const Table& table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace ovq::jinja
