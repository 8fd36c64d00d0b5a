#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/limits.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"

namespace ovq::jinja {
namespace {

Value Range(Context& e, const Args& args) {
  const bool has_begin = args[1].given();
  const int64_t begin = has_begin ? args.IntegerOr(e.heap, 0, 0) : 0;
  const int64_t end = args.IntegerOr(e.heap, has_begin ? 1 : 0, 0);
  const int64_t step = args.IntegerOr(e.heap, 2, 1);
  if (step == 0) e.heap.Fail(ErrorKind::kType, "ValueError: range() arg 3 must not be zero");
  // Unsigned, because the difference may exceed int64.
  const uint64_t span = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                 : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const bool is_empty = step > 0 ? begin >= end : begin <= end;
  const uint64_t n = is_empty ? 0 : (span - 1) / stride + 1;
  if (n > static_cast<uint64_t>(kMaxRange)) {
    e.heap.Fail(ErrorKind::kLimit, absl::StrCat("a range of more than ", kMaxRange, " items"));
  }
  e.heap.Step(n);
  std::vector<Value> items;
  for (uint64_t i = 0; i < n; ++i) {
    items.push_back(Value::Int(
        static_cast<int64_t>(static_cast<uint64_t>(begin) + i * static_cast<uint64_t>(step))));
  }
  const std::string shown = step == 1 ? absl::StrCat("range(", begin, ", ", end, ")")
                                      : absl::StrCat("range(", begin, ", ", end, ", ", step, ")");
  return e.heap.Make(Kind::kRange, std::move(items), shown);
}

// dict(mapping or pairs, name = ...)
Value MakeDict(Context& e, const Args& args, Kind kind) {
  const Value dict = e.heap.MakeDict(kind);
  if (args[0].kind() == Kind::kDict) {
    for (const auto& [key, value] : args[0].dict().entries()) e.heap.Set(dict, key, value);
  } else if (args[0].given()) {
    for (const Value pair : Items(e.heap, args[0])) {
      const std::vector<Value> items = Items(e.heap, pair);
      if (items.size() != 2) e.heap.TypeError("a dict is made of pairs");
      e.heap.Set(dict, items[0], items[1]);
    }
  }
  for (const auto& [name, value] : args.named) {
    e.heap.Set(dict, e.heap.Text(std::string(name)), value);
  }
  return dict;
}

Value DictFunction(Context& e, const Args& args) { return MakeDict(e, args, Kind::kDict); }
Value Namespace(Context& e, const Args& args) { return MakeDict(e, args, Kind::kNamespace); }

Value RaiseException(Context& e, const Args& args) {
  e.heap.Fail(ErrorKind::kRaised, ToText(e.heap, args[0]));
}

Value StrftimeNow(Context& e, const Args& args) {
  constexpr std::string_view kDirectives = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%";
  if (!args[0].is_string()) e.heap.TypeError("strftime() argument 1 must be str");
  std::string text;
  const std::string_view format = args[0].text();
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    std::string directive = "%";
    if (i + 1 < format.size() &&
        std::string_view("-_0^#").find(format[i + 1]) != std::string_view::npos) {
      directive += format[++i];
    }
    if (i + 1 == format.size() || kDirectives.find(format[i + 1]) == std::string_view::npos) {
      e.heap.Fail(ErrorKind::kType,
                  absl::StrCat("ValueError: a date format with ", Quoted(format.substr(i))));
    }
    directive += format[++i];
    char shown[64];
    const size_t size = std::strftime(shown, sizeof(shown), directive.c_str(), &e.now);
    e.heap.Spend(size);
    text.append(shown, size);
  }
  return e.heap.Text(std::move(text));
}

// Functions that Jinja defines and no known chat template calls.
Value Refused(Context& e, const Args&) {
  e.heap.TypeError("this function of Jinja is not for chat templates");
}

constexpr Builtin kGlobals[] = {
    {"range", "start stop? step?", Range},
    {"dict", "values? **", DictFunction},
    {"namespace", "values? **", Namespace},
    {"raise_exception", "message", RaiseException},
    {"strftime_now", "format", StrftimeNow},
    {"cycler", "* **", Refused},
    {"joiner", "* **", Refused},
    {"lipsum", "* **", Refused},
    {"self", "* **", Refused},
};

}  // namespace

const Builtin* FindGlobal(std::string_view name) { return FindIn(kGlobals, name); }

}  // namespace ovq::jinja
