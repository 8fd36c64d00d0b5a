#include "model/chat_template/builtin.h"

#include <algorithm>

#include "absl/strings/str_split.h"

namespace ovq::jinja {

int64_t Args::IntegerOr(Heap& heap, size_t i, int64_t otherwise) const {
  const Value value = Or(i, Value::Int(otherwise));
  heap.RequireDefined(value);
  if (value.is_integer()) return value.integer();
  heap.TypeError("'", TypeName(value), "' object cannot be interpreted as an integer");
}

Value Args::ConsumeNamed(std::string_view name) {
  const auto found = std::ranges::find(named, name, [](const auto& arg) { return arg.first; });
  if (found == named.end()) return Value();
  const Value value = found->second;
  named.erase(found);
  return value;
}

Value Builtin::Call(Heap& heap, Args args) const {
  size_t n_params = 0;
  bool any_more = false, any_named = false;
  for (absl::string_view param : absl::StrSplit(AbslView(params), ' ')) {
    if (param == "*" || param == "**") {
      (param == "*" ? any_more : any_named) = true;
      continue;
    }
    const bool optional = absl::ConsumeSuffix(&param, "?");
    const Value given = args.ConsumeNamed({param.data(), param.size()});
    if (n_params >= args.at.size()) {
      if (!given.given() && !optional) {
        heap.TypeError(name, "() misses its argument '", param, "'");
      }
      args.at.push_back(given);
    } else if (given.given()) {
      heap.TypeError(name, "() got multiple values for argument '", param, "'");
    }
    ++n_params;
  }
  if (args.at.size() > n_params && !any_more) {
    heap.TypeError(name, "() takes at most ", n_params, " arguments, got ", args.at.size());
  }
  if (!args.named.empty() && !any_named) {
    heap.TypeError(name, "() got an unexpected argument ", Quoted(args.named.front().first));
  }
  return function(heap, args);
}

const Builtin* FindIn(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

Value CallNamed(Heap& heap, const BuiltinKind& kind, std::string_view name, Args args) {
  const Builtin* found = kind.find(name);
  if (found == nullptr) {
    heap.Fail(ErrorKind::kSyntax, "there is no ", kind.name, " named ", Quoted(name));
  }
  const Level level(heap);
  return found->Call(heap, std::move(args));
}

}  // namespace ovq::jinja
