#include "model/chat_template/builtin.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::jinja {
namespace {

Value CallNamed(Context& context, const char* kind, std::string_view name, const Builtin* found,
                Args args) {
  if (found == nullptr) {
    context.heap.Fail(ErrorKind::kSyntax,
                      absl::StrCat("there is no ", kind, " named ", Quoted(name)));
  }
  const Level level(context.heap);
  return found->call(context, Bind(context.heap, *found, std::move(args)));
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

Value Args::ConsumeNamed(std::string_view name) {
  const auto found = std::ranges::find(named, name, [](const auto& arg) { return arg.first; });
  if (found == named.end()) return Value();
  const Value value = found->second;
  named.erase(found);
  return value;
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
    const Value named = args.ConsumeNamed(param);
    if (n_params >= args.at.size()) {
      if (!named.given() && !optional) {
        heap.TypeError(absl::StrCat(name, "() misses its argument '", std::string(param), "'"));
      }
      args.at.push_back(named);
    } else if (named.given()) {
      heap.TypeError(
          absl::StrCat(name, "() got multiple values for argument '", std::string(param), "'"));
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

Value CallFilter(Context& context, std::string_view name, Args args) {
  return CallNamed(context, "filter", name, FindFilter(name), std::move(args));
}

bool CallTest(Context& context, std::string_view name, Args args) {
  return Truth(CallNamed(context, "test", name, FindTest(name), std::move(args)));
}

}  // namespace ovq::jinja
