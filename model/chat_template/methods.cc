// Global functions, and the methods of str, dict, list, tuple and loop. On safe text the methods of
// str escape their arguments and return safe text, as Markup's do.
#include <algorithm>
#include <cstdint>

#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

Value Range(Heap& heap, const Args& args) {
  const bool has_begin = args[1].given();
  const int64_t begin = has_begin ? args.IntegerOr(heap, 0, 0) : 0;
  const int64_t end = args.IntegerOr(heap, has_begin ? 1 : 0, 0);
  const int64_t step = args.IntegerOr(heap, 2, 1);
  if (step == 0) heap.ValueError("range() arg 3 must not be zero");
  const __int128 span = step > 0 ? __int128{end} - begin : __int128{begin} - end;
  const __int128 n = span <= 0 ? 0 : (span - 1) / (step > 0 ? step : -__int128{step}) + 1;
  if (n > kMaxRange) {
    heap.Fail(ErrorKind::kLimit, "a range of more than ", kMaxRange, " items");
  }
  heap.Step(n);
  std::vector<Value> items;
  for (int64_t i = 0; i < n; ++i) items.push_back(Value::Int(begin + i * step));
  return heap.Make(
      Kind::kRange, std::move(items),
      absl::StrCat("range(", begin, ", ", end, step == 1 ? "" : absl::StrCat(", ", step), ")"));
}

// dict(mapping or pairs, name = ...)
template <Kind kKind>
Value MakeDict(Heap& heap, const Args& args) {
  const Value dict = heap.MakeDict(kKind);
  if (args[0].is(Kind::kDict)) {
    for (const auto& [key, value] : args[0].entries()) heap.Set(dict, key, value);
  } else if (args[0].given()) {
    for (const Value pair : Items(heap, args[0])) {
      const std::vector<Value> items = Items(heap, pair);
      if (items.size() != 2) heap.TypeError("a dict is made of pairs");
      heap.Set(dict, items[0], items[1]);
    }
  }
  heap.SetAll(dict, args.named);
  return dict;
}

Value RaiseException(Heap& heap, const Args& args) {
  heap.Fail(ErrorKind::kRaised, ToText(heap, args[0]));
}

Value StrftimeNow(Heap& heap, const Args& args) {
  constexpr std::string_view kDirectives = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%";
  constexpr std::string_view kFlags = "-_0^#";
  if (!args[0].is_string()) heap.TypeError("strftime() argument 1 must be str");
  std::string text;
  const std::string_view format = args[0].text();
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text += format[i];
      continue;
    }
    const size_t begin = i++;
    if (i < format.size() && kFlags.find(format[i]) != kFlags.npos) ++i;
    if (i == format.size() || kDirectives.find(format[i]) == kDirectives.npos) {
      heap.ValueError("a date format with ", Quoted(format.substr(i - 1)));
    }
    char shown[64];
    const std::string directive(format.substr(begin, i + 1 - begin));
    const size_t size = std::strftime(shown, sizeof(shown), directive.c_str(), &heap.now);
    heap.Spend(size);
    text.append(shown, size);
  }
  return heap.Text(text);
}

// Functions that Jinja defines and no known chat template calls.
Value Refused(Heap& heap, const Args&) {
  heap.TypeError("this function of Jinja is not for chat templates");
}

constexpr Builtin kGlobals[] = {
    {"range", "start stop? step?", Range},
    {"dict", "values? **", MakeDict<Kind::kDict>},
    {"namespace", "values? **", MakeDict<Kind::kNamespace>},
    {"raise_exception", "message", RaiseException},
    {"strftime_now", "format", StrftimeNow},
    {"cycler", "* **", Refused},
    {"joiner", "* **", Refused},
    {"lipsum", "* **", Refused},
    {"self", "* **", Refused},
};

std::string_view RequireText(Heap& heap, Value value) {
  if (value.is_string()) return value.text();
  heap.RequireDefined(value);
  heap.TypeError("must be str, not ", TypeName(value));
}

// A limit, given as -1 if there is none.
size_t LimitOr(Heap& heap, const Args& args, size_t i) {
  const int64_t limit = args.IntegerOr(heap, i, -1);
  return limit < 0 ? SIZE_MAX : static_cast<size_t>(limit);
}

Value Made(Heap& heap, const Args& args, std::string_view text) {
  return heap.Text(text, args[0].is_safe());
}

Value Texts(Heap& heap, Kind kind, const Args& args, const std::vector<std::string_view>& parts) {
  heap.SpendEach(parts.size(), sizeof(Value) + sizeof(std::string_view));
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(Made(heap, args, part));
  return heap.Make(kind, std::move(items));
}

template <bool kLeft, bool kRight>
Value Strip(Heap& heap, const Args& args) {
  const std::string_view text = args[0].text();
  if (!args[1].given_some()) return Made(heap, args, StripSpace(text, kLeft, kRight));
  const std::string_view chars = RequireText(heap, args[1]);
  heap.SpendEach(text.size(), 1 + chars.size() / 64);
  return Made(heap, args, StripChars(text, chars, kLeft, kRight));
}

std::string_view RequireSeparator(Heap& heap, Value value) {
  const std::string_view separator = RequireText(heap, value);
  if (separator.empty()) heap.ValueError("empty separator");
  return separator;
}

template <bool kFromRight>
Value SplitMethod(Heap& heap, const Args& args) {
  const std::string_view text = args[0].text();
  const size_t limit = LimitOr(heap, args, 2);
  heap.Spend(text.size());
  return Texts(heap, Kind::kList, args,
               args[1].given_some()
                   ? Split(text, RequireSeparator(heap, args[1]), limit, kFromRight)
                   : SplitSpace(text, limit, kFromRight));
}

template <bool kFromRight>
Value Partition(Heap& heap, const Args& args) {
  const std::string_view text = args[0].text(), separator = RequireSeparator(heap, args[1]);
  heap.Spend(text.size());
  std::vector<std::string_view> parts = Split(text, separator, 1, kFromRight);
  if (parts.size() == 2) {
    parts.insert(parts.begin() + 1, separator);
  } else {
    parts.insert(kFromRight ? parts.begin() : parts.end(), 2, "");
  }
  return Texts(heap, Kind::kTuple, args, parts);
}

Value SplitLinesMethod(Heap& heap, const Args& args) {
  heap.Spend(args[0].text().size());
  return Texts(heap, Kind::kList, args, SplitLines(args[0].text(), args.Flag(1)));
}

Value ReplaceMethod(Heap& heap, const Args& args) {
  return Made(heap, args,
              Replaced(heap, args[0].text(), RequireText(heap, args[1]), RequireText(heap, args[2]),
                       LimitOr(heap, args, 3)));
}

template <bool kAtEnd>
Value HasAffix(Heap& heap, const Args& args) {
  const std::string_view text = args[0].text();
  const auto matches = [&](Value affix) {
    const std::string_view part = RequireText(heap, affix);
    heap.Scan(part.size());
    return kAtEnd ? text.ends_with(part) : text.starts_with(part);
  };
  if (!args[1].is(Kind::kTuple)) return Value::Bool(matches(args[1]));
  return Value::Bool(std::ranges::any_of(args[1].items(), matches));
}

template <bool kAtEnd>
Value RemoveAffix(Heap& heap, const Args& args) {
  std::string_view text = args[0].text();
  const std::string_view part = RequireText(heap, args[1]);
  if (kAtEnd ? text.ends_with(part) : text.starts_with(part)) {
    text = text.substr(kAtEnd ? 0 : part.size(), text.size() - part.size());
  }
  return Made(heap, args, text);
}

template <std::string (*kChange)(std::string_view)>
Value Changed(Heap& heap, const Args& args) {
  heap.Spend(3 * args[0].text().size());
  return Made(heap, args, kChange(args[0].text()));
}

template <bool (*kIs)(std::string_view)>
Value Is(Heap& heap, const Args& args) {
  heap.Scan(8 * args[0].text().size());
  return Value::Bool(kIs(args[0].text()));
}

// The part of the text from args[2] to args[3], and the number of characters before it.
std::pair<std::string_view, int64_t> Part(Heap& heap, const Args& args) {
  std::string_view text = args[0].text();
  heap.Scan(text.size());
  if (!args[2].given() && !args[3].given()) return {text, 0};
  const int64_t length = model::CountChars(text);
  const auto place = [&](int64_t at) {
    return std::clamp(at < 0 ? at + length : at, int64_t{0}, length);
  };
  const int64_t begin = place(args.IntegerOr(heap, 2, 0));
  const int64_t end = std::max(begin, place(args.IntegerOr(heap, 3, length)));
  text = text.substr(PrefixBytes(text, begin));
  return {text.substr(0, PrefixBytes(text, end - begin)), begin};
}

Value Find(Heap& heap, const Args& args) {
  const auto [text, before] = Part(heap, args);
  const size_t at = FindBytes(text, RequireText(heap, args[1]));
  return Value::Int(
      at == text.npos ? -1 : before + static_cast<int64_t>(model::CountChars(text.substr(0, at))));
}

Value Index(Heap& heap, const Args& args) {
  const Value at = Find(heap, args);
  if (at.integer() < 0) heap.ValueError("substring not found");
  return at;
}

Value CountMethod(Heap& heap, const Args& args) {
  const std::string_view text = Part(heap, args).first;
  return Value::Int(Count(text, RequireText(heap, args[1])));
}

Value JoinMethod(Heap& heap, const Args& args) {
  std::vector<Value> parts = Items(heap, args[1]);
  for (Value& part : parts) {
    RequireText(heap, part);
    if (args[0].is_safe()) part = Escape(heap, part);
  }
  return Made(heap, args, Joined(heap, parts, args[0].text()));
}

constexpr Builtin kStrMethods[] = {
    {"strip", "self chars?", Strip<true, true>},
    {"lstrip", "self chars?", Strip<true, false>},
    {"rstrip", "self chars?", Strip<false, true>},
    {"split", "self sep? maxsplit?", SplitMethod<false>},
    {"rsplit", "self sep? maxsplit?", SplitMethod<true>},
    {"splitlines", "self keepends?", SplitLinesMethod},
    {"partition", "self sep", Partition<false>},
    {"rpartition", "self sep", Partition<true>},
    {"replace", "self old new count?", ReplaceMethod},
    {"startswith", "self prefix", HasAffix<false>},
    {"endswith", "self suffix", HasAffix<true>},
    {"removeprefix", "self prefix", RemoveAffix<false>},
    {"removesuffix", "self suffix", RemoveAffix<true>},
    {"upper", "self", Changed<Upper>},
    {"lower", "self", Changed<Lower>},
    {"title", "self", Changed<Title>},
    {"capitalize", "self", Changed<Capitalize>},
    {"find", "self sub start? end?", Find},
    {"index", "self sub start? end?", Index},
    {"count", "self sub start? end?", CountMethod},
    {"join", "self iterable", JoinMethod},
    {"format", "self * **", FormatBraces},
    {"isdigit", "self", Is<IsDigits>},
    {"isalpha", "self", Is<IsAlphas>},
    {"isspace", "self", Is<IsSpaces>},
    {"islower", "self", Is<IsLowerCase>},
    {"isupper", "self", Is<IsUpperCase>},
};

Value DictGet(Heap& heap, const Args& args) {
  const Value* found = args[0].As<Dict>().Find(KeyText(heap, args[1]));
  return found != nullptr ? *found : args.Or(2, Value::None());
}

// Makes a view; `show` is given the key, the value and the heap.
template <class Show>
Value View(Heap& heap, const Args& args, const char* name, Show show) {
  std::vector<Value> items;
  for (const auto& [key, value] : args[0].entries()) {
    heap.Step();
    items.push_back(show(key, value));
  }
  return heap.Make(Kind::kView, std::move(items), name);
}
Value DictItems(Heap& heap, const Args& args) {
  return View(heap, args, "dict_items", [&](Value key, Value value) {
    return heap.Make(Kind::kTuple, {key, value});
  });
}
Value DictKeys(Heap& heap, const Args& args) {
  return View(heap, args, "dict_keys", [](Value key, Value) { return key; });
}
Value DictValues(Heap& heap, const Args& args) {
  return View(heap, args, "dict_values", [](Value, Value value) { return value; });
}

Value ListIndex(Heap& heap, const Args& args) {
  const std::vector<Value>& items = args[0].items();
  const auto found =
      std::ranges::find_if(items, [&](Value item) { return Equal(heap, item, args[1]); });
  if (found == items.end()) heap.ValueError("the value is not in the list");
  return Value::Int(found - items.begin());
}

Value ListCount(Heap& heap, const Args& args) {
  return Value::Int(std::ranges::count_if(args[0].items(),
                                          [&](Value item) { return Equal(heap, item, args[1]); }));
}

Value LoopCycle(Heap& heap, const Args& args) {
  if (args.at.size() == 1) heap.TypeError("no items for cycling given");
  return args[1 + args[0].As<Loop>().at % (args.at.size() - 1)];
}

Value LoopChanged(Heap& heap, const Args& args) {
  auto& loop = args[0].As<Loop>();
  std::vector<Value> now(args.at.begin() + 1, args.at.end());
  const bool same =
      loop.has_changed && std::ranges::equal(now, loop.last_changed,
                                             [&](Value a, Value b) { return Equal(heap, a, b); });
  heap.Spend(now.size() * sizeof(Value));
  loop.last_changed = std::move(now);
  loop.has_changed = true;
  return Value::Bool(!same);
}

constexpr Builtin kDictMethods[] = {{"get", "self key default?", DictGet},
                                    {"items", "self", DictItems},
                                    {"keys", "self", DictKeys},
                                    {"values", "self", DictValues}};
constexpr Builtin kListMethods[] = {{"index", "self value", ListIndex},
                                    {"count", "self value", ListCount}};
constexpr Builtin kLoopMethods[] = {{"cycle", "self *", LoopCycle},
                                    {"changed", "self *", LoopChanged}};

}  // namespace

const Builtin* FindGlobal(std::string_view name) { return FindIn(kGlobals, name); }

const Builtin* FindMethod(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::kString:
      return FindIn(kStrMethods, name);
    case Kind::kDict:
      return FindIn(kDictMethods, name);
    case Kind::kList:
    case Kind::kTuple:
      return FindIn(kListMethods, name);
    case Kind::kLoop:
      return FindIn(kLoopMethods, name);
    default:
      return nullptr;
  }
}

}  // namespace ovq::jinja
