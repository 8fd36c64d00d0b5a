// Filters and tests, in one long file: each is a few lines, and their table stands at the end.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

// Jinja's soft_str: the value as text, safe if it was safe.
Value SoftText(Heap& heap, Value value) {
  return value.is_string() ? value : heap.Text(ToText(heap, value));
}

// Parameter i as text, or `otherwise` if it was not given.
std::string TextOr(Heap& heap, const Args& args, size_t i, const char* otherwise) {
  return args[i].given() ? ToText(heap, args[i]) : otherwise;
}

// An indentation: a text, or a number of blanks.
std::string Indentation(Heap& heap, const Args& args, size_t i, int64_t otherwise) {
  if (args[i].is_string()) return std::string(args[i].text());
  const int64_t width = std::max<int64_t>(args.IntegerOr(heap, i, otherwise), 0);
  heap.SpendEach(width, 1);
  return std::string(width, ' ');
}

Value ToJsonFilter(Heap& heap, const Args& args) {
  JsonStyle style;
  style.ensure_ascii = args.Flag(1);
  style.sort_keys = args.Flag(4);
  if (args[2].given_some()) {
    style.indent = Indentation(heap, args, 2, 0);
    style.item_separator = ",";
  }
  if (args[3].given_some()) {
    const std::vector<Value> separators = Items(heap, args[3]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      heap.TypeError("separators must be two strings");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return heap.Text(ToJson(heap, args[0], style));
}

Value LengthFilter(Heap& heap, const Args& args) { return Value::Int(Length(heap, args[0])); }

// A text as the parameter of a template.
template <size_t kSize>
struct Name {
  consteval Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
  char text[kSize];
};

// Calls a method of str on the value as text.
template <Name kName>
Value Method(Heap& heap, const Args& args) {
  Args of_text = args;
  of_text.at[0] = SoftText(heap, args[0]);
  return FindMethod(Kind::kString, kName.text)->Call(heap, std::move(of_text));
}

// Unlike in str.title, a word begins only after blanks, - ( { [ or <.
Value TitleFilter(Heap& heap, const Args& args) {
  const Value value = SoftText(heap, args[0]);
  heap.Spend(3 * value.text().size());
  std::string title;
  bool begins = true;
  for (size_t at = 0; at < value.text().size();) {
    const char32_t c = model::NextChar(value.text(), at);
    (begins ? model::AppendUpper : model::AppendLower)(c, title);
    begins = IsSpace(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  }
  return heap.Text(title, value.is_safe());
}

Value ReplaceFilter(Heap& heap, const Args& args) {
  const int64_t count = args[3].is(Kind::kNone) ? -1 : args.IntegerOr(heap, 3, -1);
  return heap.Text(Replaced(heap, ToText(heap, args[0]), ToText(heap, args[1]),
                            ToText(heap, args[2]), count < 0 ? SIZE_MAX : count));
}

Value Default(Heap& heap, const Args& args) {
  const bool is_missing = args[0].is_undefined() || (args.Flag(2) && !Truth(args[0]));
  return !is_missing ? args[0] : args[1].given() ? args[1] : heap.Text("");
}

// A text without the blanks around it and underscores, for Python's int() and float().
std::string Digits(std::string_view text) {
  std::string digits(StripSpace(text, true, true));
  std::erase(digits, '_');
  return digits;
}

std::optional<double> ReadFloat(std::string_view text) {
  const std::string digits = Digits(text);
  double value = 0;
  const bool is_hex = digits.find_first_of("xX") != std::string::npos;
  return !is_hex && absl::SimpleAtod(digits, &value) ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> ReadInt(std::string_view text, int base) {
  std::string digits = Digits(text);
  if (digits.starts_with('+')) digits.erase(0, 1);
  const char* prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : nullptr;
  if (prefix != nullptr && Lower(digits).starts_with(prefix)) digits.erase(0, 2);
  int64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value, base);
  return error == std::errc() && last == end ? std::optional(value) : std::nullopt;
}

Value IntFilter(Heap& heap, const Args& args) {
  const Value value = args[0], otherwise = args.Or(1, Value::Int(0));
  heap.RequireDefined(value);
  if (value.is_integer()) return Value::Int(value.integer());
  std::optional<double> number;
  if (value.is_string()) {
    const int64_t base = args.IntegerOr(heap, 2, 10);
    if (base < 2 || base > 36) heap.ValueError("int() base");
    heap.Spend(value.text().size());
    const std::optional<int64_t> whole = ReadInt(value.text(), static_cast<int>(base));
    if (whole.has_value()) return Value::Int(*whole);
    number = ReadFloat(value.text());
  } else if (value.is_number()) {
    number = value.number();
  }
  if (!number.has_value() || !std::isfinite(*number)) return otherwise;
  if (std::abs(*number) >= 0x1p63) {
    heap.Fail(ErrorKind::kLimit, "an integer of more than 64 bits");
  }
  return Value::Int(static_cast<int64_t>(*number));
}

Value FloatFilter(Heap& heap, const Args& args) {
  const Value value = args[0], otherwise = args.Or(1, Value::Float(0));
  heap.RequireDefined(value);
  if (value.is_number()) return Value::Float(value.number());
  if (!value.is_string()) return otherwise;
  heap.Spend(value.text().size());
  const std::optional<double> number = ReadFloat(value.text());
  return number.has_value() ? Value::Float(*number) : otherwise;
}

Value Round(Heap& heap, const Args& args) {
  const Value value = args[0];
  heap.RequireDefined(value);
  const int64_t precision = args.IntegerOr(heap, 1, 0);
  const std::string method = TextOr(heap, args, 2, "common");
  if (!value.is_number()) heap.TypeError("only numbers can be rounded");
  if (method != "common" && method != "ceil" && method != "floor") {
    heap.Fail(ErrorKind::kType, "method must be common, ceil or floor");
  }
  if (std::abs(precision) > 300) heap.TypeError("round() to that many digits");
  const double number = value.number();
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = number * scale;
    return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (value.is_integer() && precision >= 0) return Value::Int(value.integer());
  if (!std::isfinite(number)) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double rounded = std::nearbyint(number / scale) * scale;
    return value.is_integer() ? Value::Int(static_cast<int64_t>(rounded)) : Value::Float(rounded);
  }
  char digits[700];  // correctly rounded, halves to even, as in Python
  std::snprintf(digits, sizeof(digits), "%.*f", static_cast<int>(precision), number);
  return Value::Float(std::strtod(digits, nullptr));
}

Value Abs(Heap& heap, const Args& args) {
  heap.RequireDefined(args[0]);
  if (!args[0].is_number()) heap.TypeError("bad operand type for abs()");
  return Unary(heap, args[0].is_integer() && args[0].integer() < 0 ? "-" : "+",
               args[0].is_integer() ? args[0] : Value::Float(std::abs(args[0].number())));
}

Value Format(Heap& heap, const Args& args) {
  const Value format = SoftText(heap, args[0]);
  if (args.named.empty()) {
    return FormatPercent(heap, format,
                         heap.Make(Kind::kTuple, {args.at.begin() + 1, args.at.end()}));
  }
  if (args.at.size() > 1) {
    heap.TypeError("can't handle positional and keyword arguments at the same time");
  }
  const Value values = heap.MakeDict();
  heap.SetAll(values, args.named);
  return FormatPercent(heap, format, values);
}

Value Indent(Heap& heap, const Args& args) {
  const Value value = args[0];
  heap.RequireDefined(value);
  if (!value.is_string()) heap.TypeError("only text can be indented");
  const std::string indent = Indentation(heap, args, 1, 4);
  const bool first = args.Flag(2), blank = args.Flag(3);
  heap.Spend(2 * value.text().size());
  const std::string all = std::string(value.text()) + "\n";
  const std::vector<std::string_view> lines = SplitLines(all, /*keep_ends=*/false);
  heap.SpendEach(lines.size(), indent.size() + 1);
  std::string text = first ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += '\n';
    if (i > 0 && (blank || !lines[i].empty())) text += indent;
    text += lines[i];
  }
  return heap.Text(text, value.is_safe());
}

Value Truncate(Heap& heap, const Args& args) {
  const Value value = args[0];
  const int64_t length = args.IntegerOr(heap, 1, 255);
  const std::string end = TextOr(heap, args, 3, "...");
  const int64_t leeway = args[4].is(Kind::kNone) ? 5 : args.IntegerOr(heap, 4, 5);
  const int64_t n_end = model::CountChars(end);
  if (length < n_end || leeway < 0) heap.Fail(ErrorKind::kType, "AssertionError: truncate()");
  const int64_t size = Length(heap, value);
  if (size <= length || size - length <= leeway) return value;
  if (!value.is_string()) heap.TypeError("only text can be truncated");
  std::string text(value.text().substr(0, PrefixBytes(value.text(), length - n_end)));
  if (!args.Flag(2)) text = text.substr(0, text.rfind(' '));  // whole words
  return heap.Text(text + end, value.is_safe());
}

// Words are runs of letters, digits and underscores.
Value WordCount(Heap& heap, const Args& args) {
  const Value value = SoftText(heap, args[0]);
  heap.Spend(value.text().size());
  int64_t n = 0;
  bool in_word = false;
  for (size_t at = 0; at < value.text().size();) {
    const char32_t c = model::NextChar(value.text(), at);
    const bool is_word = model::IsLetter(c) || model::IsNumber(c) || c == U'_';
    n += is_word && !in_word;
    in_word = is_word;
  }
  return Value::Int(n);
}

Value Generator(Heap& heap, std::vector<Value> items) {
  return heap.Make(Kind::kGenerator, std::move(items));
}

// Follows `path`, attributes and numbers separated by dots, from the item; the item itself if
// `path` was not given.
Value Place(Heap& heap, Value item, Value path) {
  if (!path.given_some()) return item;
  if (path.is_integer()) return Item(heap, item, path);
  const std::string text = ToText(heap, path);
  for (const std::string_view part : Split(text, ".", SIZE_MAX, /*from_right=*/false)) {
    const bool is_number = part.size() < 10 && IsDigits(part) && (part[0] & 0x80) == 0;
    item = Item(heap, item,
                is_number ? Value::Int(std::atoll(std::string(part).c_str())) : heap.Text(part));
  }
  return item;
}

// The key for sorting and comparing: text in lower case unless case matters.
Value SortKey(Heap& heap, Value value, bool case_sensitive) {
  return case_sensitive || !value.is_string() ? value : heap.Text(Lower(value.text()));
}

using Keyed = std::pair<Value, Value>;  // key, item

std::vector<Keyed> KeyedItems(Heap& heap, const std::vector<Value>& items, Value path,
                              bool case_sensitive) {
  std::vector<Keyed> keyed;
  heap.SpendEach(items.size(), sizeof(Keyed));
  for (const Value item : items) {
    keyed.emplace_back(SortKey(heap, Place(heap, item, path), case_sensitive), item);
  }
  return keyed;
}

// Sorts by key and returns the items as a list.
Value Sorted(Heap& heap, std::vector<Keyed>& keyed, bool reverse) {
  std::ranges::stable_sort(keyed, [&](const Keyed& a, const Keyed& b) {
    return reverse ? Less(heap, b.first, a.first) : Less(heap, a.first, b.first);
  });
  std::vector<Value> items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return heap.Make(Kind::kList, std::move(items));
}

Value First(Heap& heap, const Args& args) {
  if (args[0].is(Kind::kGenerator)) {
    auto& list = args[0].As<List>();
    if (list.next < list.items.size()) return list.items[list.next++];
  } else if (const std::vector<Value> items = Items(heap, args[0]); !items.empty()) {
    return items.front();
  }
  return heap.MakeUndefined("No first item, sequence was empty.");
}

Value Last(Heap& heap, const Args& args) {
  if (args[0].is(Kind::kGenerator)) heap.TypeError("'generator' object is not reversible");
  const std::vector<Value> items = Items(heap, args[0]);
  return items.empty() ? heap.MakeUndefined("No last item, sequence was empty.") : items.back();
}

Value Join(Heap& heap, const Args& args) {
  std::vector<Value> items = Items(heap, args[0]);
  for (Value& item : items) item = Place(heap, item, args[2]);
  return heap.Text(Joined(heap, items, TextOr(heap, args, 1, "")));
}

std::vector<Value> Pairs(Heap& heap, Value dict) {
  if (!dict.is(Kind::kDict)) heap.TypeError("Can only get item pairs from a mapping.");
  return Items(heap, FindMethod(Kind::kDict, "items")->function(heap, {{dict}, {}}));
}

Value DictSort(Heap& heap, const Args& args) {
  const std::string by = TextOr(heap, args, 2, "key");
  if (by != "key" && by != "value") {
    heap.Fail(ErrorKind::kType, "You can only sort by either \"key\" or \"value\"");
  }
  heap.RequireDefined(args[0]);
  std::vector<Keyed> keyed =
      KeyedItems(heap, Pairs(heap, args[0]), Value::Int(by == "key" ? 0 : 1), args.Flag(1));
  return Sorted(heap, keyed, args.Flag(3));
}

// Keys are lists with a part for each comma-separated attribute.
Value Sort(Heap& heap, const Args& args) {
  std::vector<Value> paths = {args[3]};
  if (args[3].is_string()) {
    paths.clear();
    for (const std::string_view part : Split(args[3].text(), ",", SIZE_MAX, /*from_right=*/false)) {
      paths.push_back(heap.Text(part));
    }
  }
  std::vector<Keyed> keyed;
  for (const Value item : Items(heap, args[0])) {
    std::vector<Value> keys;
    for (const Value path : paths) {
      keys.push_back(SortKey(heap, Place(heap, item, path), args.Flag(2)));
    }
    keyed.emplace_back(heap.Make(Kind::kList, std::move(keys)), item);
  }
  return Sorted(heap, keyed, args.Flag(1));
}

Value Reverse(Heap& heap, const Args& args) {
  if (args[0].is_string()) {
    return Slice(heap, args[0], Value::None(), Value::None(), Value::Int(-1));
  }
  std::vector<Value> items = Items(heap, args[0]);
  std::ranges::reverse(items);
  return Generator(heap, std::move(items));
}

Value Unique(Heap& heap, const Args& args) {
  const Value seen = heap.MakeDict();
  std::vector<Value> items;
  for (const auto& [key, item] : KeyedItems(heap, Items(heap, args[0]), args[2], args.Flag(1))) {
    if (seen.As<Dict>().Find(KeyText(heap, key)) != nullptr) continue;
    heap.Set(seen, key, item);
    items.push_back(item);
  }
  return Generator(heap, std::move(items));
}

// Calls the filter or test that args[i] names, with the arguments behind it, on a value.
Value CallOn(Heap& heap, const BuiltinKind& kind, Value value, const Args& args, size_t i) {
  Args of_value = {{args.at.begin() + i, args.at.end()}, args.named};
  of_value.at[0] = value;
  return CallNamed(heap, kind, ToText(heap, args[i]), std::move(of_value));
}

Value Map(Heap& heap, const Args& args) {
  if (!Truth(args[0])) return Generator(heap, {});  // also values that cannot be iterated
  std::vector<Value> items = Items(heap, args[0]);
  Args named = args;
  const Value path = named.ConsumeNamed("attribute"), otherwise = named.ConsumeNamed("default");
  if (args.at.size() == 1 && !path.given()) heap.TypeError("map requires a filter argument");
  for (Value& item : items) {
    if (args.at.size() > 1) {
      item = CallOn(heap, kFilter, item, args, 1);
      continue;
    }
    item = Place(heap, item, path);
    if (item.is_undefined() && otherwise.given()) item = otherwise;
  }
  return Generator(heap, std::move(items));
}

// The items that pass the test at args[kFirst], or fail it; without a test, those that are true.
// If there is an argument before the test, the value at that path is tested.
template <size_t kFirst, bool kWanted>
Value Select(Heap& heap, const Args& args) {
  if (!Truth(args[0])) return Generator(heap, {});  // also values that cannot be iterated
  std::vector<Value> items;
  for (const Value item : Items(heap, args[0])) {
    const Value place = kFirst == 1 ? item : Place(heap, item, args[1]);
    const bool tests = args.at.size() > kFirst;
    if (Truth(tests ? CallOn(heap, kTest, place, args, kFirst) : place) == kWanted) {
      items.push_back(item);
    }
  }
  return Generator(heap, std::move(items));
}

Value GroupBy(Heap& heap, const Args& args) {
  const auto key_of = [&](Value item) {
    const Value key = Place(heap, item, args[1]);
    return key.is_undefined() && args[2].given() ? args[2] : key;
  };
  std::vector<Keyed> keyed;
  for (const Value item : Items(heap, args[0])) {
    keyed.emplace_back(SortKey(heap, key_of(item), args.Flag(3)), item);
  }
  const Value sorted = Sorted(heap, keyed, /*reverse=*/false);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    while (end < keyed.size() && Equal(heap, keyed[end].first, keyed[begin].first)) ++end;
    if (end == begin) ++end;  // NaN keys are not equal to themselves
    const Value key = key_of(keyed[begin].second);
    const auto items = sorted.items().begin();
    const Value group = heap.Make(Kind::kList, {items + begin, items + end});
    groups.push_back(heap.Make(Kind::kTuple, {key, group}, "group"));
  }
  return heap.Make(Kind::kList, std::move(groups));
}

Value Batch(Heap& heap, const Args& args) {
  const int64_t size = args.IntegerOr(heap, 1, 0);
  std::vector<Value> batches, batch;
  for (const Value item : Items(heap, args[0])) {
    if (std::ssize(batch) == size) {
      batches.push_back(heap.Make(Kind::kList, std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (args[2].given_some() && std::ssize(batch) < size) {
      heap.SpendEach(size - batch.size(), sizeof(Value));
      batch.resize(size, args[2]);
    }
    batches.push_back(heap.Make(Kind::kList, std::move(batch)));
  }
  return Generator(heap, std::move(batches));
}

Value Sum(Heap& heap, const Args& args) {
  Value sum = args.Or(2, Value::Int(0));
  if (sum.is_string()) heap.TypeError("sum() can't sum strings");
  for (const Value item : Items(heap, args[0])) {
    sum = Binary(heap, "+", sum, Place(heap, item, args[1]));
  }
  return sum;
}

template <bool kMax>
Value Extreme(Heap& heap, const Args& args) {
  const std::vector<Keyed> keyed = KeyedItems(heap, Items(heap, args[0]), args[2], args.Flag(1));
  if (keyed.empty()) return heap.MakeUndefined("No aggregated item, sequence was empty.");
  const Keyed* best = &keyed[0];
  for (const Keyed& each : keyed) {
    const Value smaller = kMax ? best->first : each.first;
    if (Less(heap, smaller, kMax ? each.first : best->first)) best = &each;
  }
  return best->second;
}

constexpr Builtin kFilters[] = {
    {"tojson", "value ensure_ascii? indent? separators? sort_keys?", ToJsonFilter},
    {"length", "value", LengthFilter},
    {"count", "value", LengthFilter},
    {"trim", "value chars?", Method<"strip">},
    {"upper", "value", Method<"upper">},
    {"lower", "value", Method<"lower">},
    {"capitalize", "value", Method<"capitalize">},
    {"title", "value", TitleFilter},
    {"replace", "value old new count?", ReplaceFilter},
    {"default", "value default_value? boolean?", Default},
    {"d", "value default_value? boolean?", Default},
    {"string", "value", [](Heap& heap, const Args& args) { return SoftText(heap, args[0]); }},
    {"int", "value default? base?", IntFilter},
    {"float", "value default?", FloatFilter},
    {"round", "value precision? method?", Round},
    {"abs", "value", Abs},
    {"safe", "value",
     [](Heap& heap, const Args& args) { return heap.Text(ToText(heap, args[0]), /*safe=*/true); }},
    {"escape", "value", [](Heap& heap, const Args& args) { return Escape(heap, args[0]); }},
    {"e", "value", [](Heap& heap, const Args& args) { return Escape(heap, args[0]); }},
    {"format", "value * **", Format},
    {"indent", "value width? first? blank?", Indent},
    {"truncate", "value length? killwords? end? leeway?", Truncate},
    {"wordcount", "value", WordCount},
    {"first", "seq", First},
    {"last", "seq", Last},
    {"list", "value",
     [](Heap& heap, const Args& args) { return heap.Make(Kind::kList, Items(heap, args[0])); }},
    {"join", "value d? attribute?", Join},
    {"items", "value",
     [](Heap& heap, const Args& args) {
       if (args[0].is_undefined()) return Generator(heap, {});
       return Generator(heap, Pairs(heap, args[0]));
     }},
    {"dictsort", "value case_sensitive? by? reverse?", DictSort},
    {"sort", "value reverse? case_sensitive? attribute?", Sort},
    {"reverse", "value", Reverse},
    {"unique", "value case_sensitive? attribute?", Unique},
    {"map", "value * **", Map},
    {"select", "value * **", Select<1, true>},
    {"reject", "value * **", Select<1, false>},
    {"selectattr", "value attribute * **", Select<2, true>},
    {"rejectattr", "value attribute * **", Select<2, false>},
    {"groupby", "value attribute default? case_sensitive?", GroupBy},
    {"batch", "value linecount fill_with?", Batch},
    {"sum", "iterable attribute? start?", Sum},
    {"min", "value case_sensitive? attribute?", Extreme<false>},
    {"max", "value case_sensitive? attribute?", Extreme<true>},
};

template <bool (*kIs)(Value)>
Value Is(Heap&, const Args& args) {
  return Value::Bool(kIs(args[0]));
}
template <Kind... kKinds>
bool IsKind(Value value) {
  return (value.is(kKinds) || ...);
}
template <bool kTruth>
bool IsBool(Value value) {
  return value.is(Kind::kBool) && Truth(value) == kTruth;
}
bool IsDefined(Value value) { return !value.is_undefined(); }
bool IsNumber(Value value) { return value.is_number(); }
bool IsSafe(Value value) { return value.is_safe(); }
bool IsSequence(Value value) {
  return value.has_places() || value.is(Kind::kDict) || value.is_undefined();
}
bool IsIterable(Value value) {
  return IsSequence(value) || value.has_items() || value.is(Kind::kLoop);
}

// Comparison by the operator's name.
template <Name kName>
Value Compares(Heap& heap, const Args& args) {
  return Value::Bool(Compare(heap, kName.text, args[0], args[1]));
}

Value HasRest(Heap& heap, Value value, Value divisor, int64_t rest) {
  return Value::Bool(Equal(heap, Binary(heap, "%", value, divisor), Value::Int(rest)));
}

Value IsSameAs(Heap&, const Args& args) {
  const Value a = args[0], b = args[1];
  if (a.kind() != b.kind()) return Value::Bool(false);
  if (a.is_number()) return Value::Bool(a.number() == b.number());
  if (a.is_string()) return Value::Bool(a.text() == b.text());
  return Value::Bool(a.is(Kind::kNone) || a.object() == b.object());
}

template <bool (*kHas)(std::string_view)>
Value HasCase(Heap& heap, const Args& args) {
  const std::string text = ToText(heap, args[0]);
  heap.Scan(8 * text.size());
  return Value::Bool(kHas(text));
}

template <const Builtin* (*kFind)(std::string_view)>
Value Names(Heap&, const Args& args) {
  return Value::Bool(args[0].is_string() && kFind(args[0].text()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"defined", "value", Is<IsDefined>},
    {"undefined", "value", Is<IsKind<Kind::kUndefined>>},
    {"none", "value", Is<IsKind<Kind::kNone>>},
    {"string", "value", Is<IsKind<Kind::kString>>},
    {"number", "value", Is<IsNumber>},
    {"integer", "value", Is<IsKind<Kind::kInt>>},
    {"float", "value", Is<IsKind<Kind::kFloat>>},
    {"boolean", "value", Is<IsKind<Kind::kBool>>},
    {"mapping", "value", Is<IsKind<Kind::kDict>>},
    {"sequence", "value", Is<IsSequence>},
    {"iterable", "value", Is<IsIterable>},
    {"callable", "value", Is<IsKind<Kind::kCallable, Kind::kLoop, Kind::kUndefined>>},
    {"escaped", "value", Is<IsSafe>},
    {"true", "value", Is<IsBool<true>>},
    {"false", "value", Is<IsBool<false>>},
    {"eq", "a b", Compares<"==">},
    {"equalto", "a b", Compares<"==">},
    {"==", "a b", Compares<"==">},
    {"ne", "a b", Compares<"!=">},
    {"!=", "a b", Compares<"!=">},
    {"gt", "a b", Compares<">">},
    {"greaterthan", "a b", Compares<">">},
    {">", "a b", Compares<">">},
    {"ge", "a b", Compares<">=">},
    {">=", "a b", Compares<">=">},
    {"lt", "a b", Compares<"<">},
    {"lessthan", "a b", Compares<"<">},
    {"<", "a b", Compares<"<">},
    {"le", "a b", Compares<"<=">},
    {"<=", "a b", Compares<"<=">},
    {"in", "value seq", Compares<"in">},
    {"odd", "value",
     [](Heap& heap, const Args& args) { return HasRest(heap, args[0], Value::Int(2), 1); }},
    {"even", "value",
     [](Heap& heap, const Args& args) { return HasRest(heap, args[0], Value::Int(2), 0); }},
    {"divisibleby", "value num",
     [](Heap& heap, const Args& args) { return HasRest(heap, args[0], args[1], 0); }},
    {"sameas", "value other", IsSameAs},
    {"lower", "value", HasCase<IsLowerCase>},
    {"upper", "value", HasCase<IsUpperCase>},
    {"filter", "value", Names<FindFilter>},
    {"test", "value", Names<FindTest>},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) { return FindIn(kFilters, name); }
const Builtin* FindTest(std::string_view name) { return FindIn(kTests, name); }

}  // namespace ovq::jinja
