#include "model/chat_template/builtin.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::jinja {
namespace {

// Removes and returns the argument `name` of `named`.
std::optional<Value> ConsumeNamed(std::vector<std::pair<std::string_view, Value>>& named,
                                  std::string_view name) {
  for (auto it = named.begin(); it != named.end(); ++it) {
    if (it->first != name) continue;
    const Value value = it->second;
    named.erase(it);
    return value;
  }
  return std::nullopt;
}

}  // namespace

int64_t Args::IntegerOr(Heap& heap, size_t i, int64_t otherwise) const {
  const Value value = (*this)[i];
  if (!value.given()) return otherwise;
  if (value.is_undefined()) heap.Undefined(value);
  if (!value.is_integer()) {
    heap.TypeError(
        absl::StrCat("'", TypeName(value), "' object cannot be interpreted as an integer"));
  }
  return value.integer();
}

Args Bind(Heap& heap, const Builtin& builtin, Args args) {
  const std::string name(builtin.name);
  size_t n_params = 0;
  bool any_more = false, any_named = false;
  for (std::string_view rest = builtin.params; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    std::string_view param = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (param == "*" || param == "**") {
      (param == "*" ? any_more : any_named) = true;
      continue;
    }
    const bool optional = param.ends_with('?');
    if (optional) param.remove_suffix(1);
    const std::optional<Value> named = ConsumeNamed(args.named, param);
    if (n_params < args.at.size()) {
      if (named.has_value()) {
        heap.TypeError(
            absl::StrCat(name, "() got multiple values for argument '", std::string(param), "'"));
      }
    } else if (named.has_value() || optional) {
      args.at.push_back(named.value_or(Value()));
    } else {
      heap.TypeError(absl::StrCat(name, "() misses its argument '", std::string(param), "'"));
    }
    ++n_params;
  }
  if (args.at.size() > n_params && !any_more) {
    heap.TypeError(
        absl::StrCat(name, "() takes at most ", n_params, " arguments, got ", args.at.size()));
  }
  if (!args.named.empty() && !any_named) {
    heap.TypeError(
        absl::StrCat(name, "() got an unexpected argument ", Quoted(args.named.front().first)));
  }
  return args;
}

}  // namespace ovq::jinja
