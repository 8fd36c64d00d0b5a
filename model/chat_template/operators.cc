#include "model/chat_template/operators.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_replace.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/print.h"
#include "model/chat_template/program.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

// Compares integers and floats by their exact values.
int Order(Value a, Value b) {
  const auto exact = [](Value value) {
    return value.is_integer() ? static_cast<long double>(value.integer()) : value.number();
  };
  const long double x = exact(a), y = exact(b);
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;  // 2: one is NaN
}

bool Contains(Heap& heap, Value container, Value item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        heap.TypeError("'in <string>' requires string as left operand, not ", TypeName(item));
      }
      heap.Scan(container.text().size());
      return FindBytes(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict:
      return container.As<Dict>().Find(KeyText(heap, item)) != nullptr;
    default:
      return std::ranges::any_of(Items(heap, container),
                                 [&](Value each) { return Equal(heap, each, item); });
  }
}

[[noreturn]] void Overflow(Heap& heap) {
  heap.Fail(ErrorKind::kLimit, "an integer of more than 64 bits");
}

[[noreturn]] void ByZero(Heap& heap) {
  heap.Fail(ErrorKind::kType, "ZeroDivisionError: division by zero");
}

Value Power(Heap& heap, Value a, Value b) {
  if (!a.is_integer() || !b.is_integer() || b.integer() < 0) {
    if (a.number() == 0 && b.number() < 0) ByZero(heap);
    const double power = std::pow(a.number(), b.number());
    if (std::isnan(power) && !std::isnan(a.number()) && !std::isnan(b.number())) {
      heap.TypeError("a power that is a complex number");
    }
    return Value::Float(power);
  }
  int64_t power = 1, base = a.integer();
  for (int64_t n = b.integer(); n > 0; n >>= 1) {
    if ((n & 1) != 0 && __builtin_mul_overflow(power, base, &power)) Overflow(heap);
    if (n > 1 && __builtin_mul_overflow(base, base, &base)) Overflow(heap);
  }
  return Value::Int(power);
}

Value IntegerBinary(Heap& heap, std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  if (name == "+"   ? __builtin_add_overflow(a, b, &result)
      : name == "-" ? __builtin_sub_overflow(a, b, &result)
      : name == "*" ? __builtin_mul_overflow(a, b, &result)
                    : false) {
    Overflow(heap);
  }
  if (name != "//" && name != "%") return Value::Int(result);
  if (b == 0) ByZero(heap);
  if (b == -1) {  // the one divisor whose quotient may overflow
    if (name == "//" && __builtin_sub_overflow(int64_t{0}, a, &result)) Overflow(heap);
    return Value::Int(result);
  }
  // The quotient is rounded down, the remainder has the sign of b.
  const int64_t rest = a % b;
  const bool rounds = rest != 0 && (rest < 0) != (b < 0);
  return Value::Int(name == "//" ? a / b - rounds : rest + (rounds ? b : 0));
}

Value Number(Heap& heap, std::string_view name, Value a, Value b) {
  if (name == "**") return Power(heap, a, b);
  if (name != "/" && a.is_integer() && b.is_integer()) {
    return IntegerBinary(heap, name, a.integer(), b.integer());
  }
  const double x = a.number(), y = b.number();
  if (name == "+") return Value::Float(x + y);
  if (name == "-") return Value::Float(x - y);
  if (name == "*") return Value::Float(x * y);
  if (y == 0) ByZero(heap);
  if (name == "/") return Value::Float(x / y);
  double rest = std::fmod(x, y);
  if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
  if (name == "%") return Value::Float(rest != 0 ? rest : std::copysign(0.0, y));
  return Value::Float(std::round((x - rest) / y));
}

bool IsRepeatable(Value value) {
  return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple);
}

// A text or list repeated `count` times.
Value Repeated(Heap& heap, Value value, int64_t count) {
  const auto repeated = [&](const auto& once, auto all, size_t unit) {
    const size_t n = std::max<int64_t>(count, 0);
    heap.SpendEach(n, once.size() * unit);
    for (size_t i = 0; i < n && !once.empty(); ++i) all.insert(all.end(), once.begin(), once.end());
    return all;
  };
  if (value.is_string())
    return heap.Text(repeated(value.text(), std::string(), 1), value.is_safe());
  return heap.Make(value.kind(), repeated(value.items(), std::vector<Value>(), sizeof(Value)));
}

// The object's name in Jinja's error messages.
std::string ObjectName(Value value) {
  return value.is(Kind::kNone) ? "None" : TypeName(value) + " object";
}

// Whether the sandbox forbids an attribute that the value has: those that change the value, and
// Python's internal ones.
bool IsUnsafeAttribute(Kind kind, std::string_view name) {
  constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::string_view kListChanges[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  return (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) ||
         (kind == Kind::kDict && std::ranges::count(kDictChanges, name) > 0) ||
         (kind == Kind::kList && std::ranges::count(kListChanges, name) > 0);
}

// All items of a loop, from the first on: tests those that are left.
const std::vector<Value>& AllItems(Loop& loop) {
  loop.rendering->FindItems(loop, SIZE_MAX);
  return loop.items;
}

// loop.index etc.; kMissing if there is none of that name. Tests no more items than the name needs.
Value LoopAttribute(Heap& heap, Loop& loop, std::string_view name) {
  const auto at = static_cast<int64_t>(loop.at);
  const std::pair<std::string_view, Value> plain[] = {{"index", Value::Int(at + 1)},
                                                      {"index0", Value::Int(at)},
                                                      {"first", Value::Bool(at == 0)},
                                                      {"depth", Value::Int(loop.depth)},
                                                      {"depth0", Value::Int(loop.depth - 1)}};
  for (const auto& [each, value] : plain) {
    if (name == each) return value;
  }
  if (name == "previtem") {
    return at > 0 ? loop.items[at - 1] : heap.MakeUndefined("there is no previous item");
  }
  if (name == "last" || name == "nextitem") {
    const bool has_next = loop.rendering->FindItems(loop, loop.at + 2);
    if (name == "last") return Value::Bool(!has_next);
    return has_next ? loop.items[at + 1] : heap.MakeUndefined("there is no next item");
  }
  // Numbers that count from the end, by what they add to loop.length.
  const std::pair<std::string_view, int64_t> of_length[] = {
      {"length", 0}, {"revindex", -at}, {"revindex0", -at - 1}};
  for (const auto& [each, added] : of_length) {
    if (name == each) return Value::Int(std::ssize(AllItems(loop)) + added);
  }
  return Value();
}

}  // namespace

bool Equal(Heap& heap, Value a, Value b) {
  const Level level(heap);
  if (a.is_number() && b.is_number()) return Order(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      heap.Scan(std::min(a.text().size(), b.text().size()));
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return std::ranges::equal(a.items(), b.items(),
                                [&](Value x, Value y) { return Equal(heap, x, y); });
    case Kind::kDict:
      return a.entries().size() == b.entries().size() &&
             std::ranges::all_of(a.entries(), [&](const auto& entry) {
               const Value* other = b.As<Dict>().Find(KeyText(heap, entry.first));
               return other != nullptr && Equal(heap, entry.second, *other);
             });
    default:
      return a.object() == b.object();
  }
}

bool Less(Heap& heap, Value a, Value b) {
  const Level level(heap);
  heap.RequireDefined(a);
  heap.RequireDefined(b);
  if (a.is_number() && b.is_number()) return Order(a, b) == -1;
  if (a.kind() != b.kind() || !IsRepeatable(a)) {
    heap.TypeError("'<' not supported between instances of '", TypeName(a), "' and '", TypeName(b),
                   "'");
  }
  if (a.is_string()) {
    heap.Scan(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // UTF-8 sorts by code point
  }
  const std::vector<Value>&x = a.items(), &y = b.items();
  const auto [i, j] =
      std::ranges::mismatch(x, y, [&](Value v, Value w) { return Equal(heap, v, w); });
  return i == x.end() || j == y.end() ? x.size() < y.size() : Less(heap, *i, *j);
}

bool Compare(Heap& heap, std::string_view name, Value a, Value b) {
  if (name == "==") return Equal(heap, a, b);
  if (name == "!=") return !Equal(heap, a, b);
  if (name == "in") return Contains(heap, b, a);
  if (name == "not in") return !Contains(heap, b, a);
  if (name == "<") return Less(heap, a, b);
  if (name == ">") return Less(heap, b, a);
  return Less(heap, name == "<=" ? a : b, name == "<=" ? b : a) || Equal(heap, a, b);
}

Value Binary(Heap& heap, std::string_view name, Value a, Value b) {
  heap.RequireDefined(a);
  heap.RequireDefined(b);
  if (a.is_number() && b.is_number()) return Number(heap, name, a, b);
  if (name == "+" && a.is_string() && b.is_string()) {
    const bool safe = a.is_safe() || b.is_safe();
    if (safe) {
      a = Escape(heap, a);
      b = Escape(heap, b);
    }
    heap.Spend(a.text().size() + b.text().size());
    return heap.Text(std::string(a.text()).append(b.text()), safe);
  }
  if (name == "+" && a.kind() == b.kind() && IsRepeatable(a)) {
    std::vector<Value> items = Items(heap, a);
    const std::vector<Value> more = Items(heap, b);
    items.insert(items.end(), more.begin(), more.end());
    return heap.Make(a.kind(), std::move(items));
  }
  if (name == "*" && IsRepeatable(a) && b.is_integer()) return Repeated(heap, a, b.integer());
  if (name == "*" && IsRepeatable(b) && a.is_integer()) return Repeated(heap, b, a.integer());
  if (name == "%" && a.is_string()) return FormatPercent(heap, a, b);
  heap.TypeError("unsupported operand type(s) for ", name, ": '", TypeName(a), "' and '",
                 TypeName(b), "'");
}

Value Unary(Heap& heap, std::string_view name, Value value) {
  heap.RequireDefined(value);
  if (!value.is_number()) {
    heap.TypeError("bad operand type for unary ", name, ": '", TypeName(value), "'");
  }
  if (name == "+") return value.is_integer() ? Value::Int(value.integer()) : value;
  if (!value.is_integer()) return Value::Float(-value.number());
  return IntegerBinary(heap, "-", 0, value.integer());
}

Value Attribute(Heap& heap, Value value, std::string_view name) {
  heap.RequireDefined(value);
  const std::string text(name);
  if (IsUnsafeAttribute(value.kind(), name)) {
    return heap.MakeUndefined(absl::StrCat("access to attribute '", text, "' of '", TypeName(value),
                                           "' object is unsafe."),
                              /*unsafe=*/true);
  }
  if (const Builtin* method = FindMethod(value.kind(), name); method != nullptr) {
    return heap.MakeCallable({.name = method->name, .builtin = method, .self = value});
  }
  if (value.is(Kind::kLoop)) {
    const Value found = LoopAttribute(heap, value.As<Loop>(), name);
    if (found.given()) return found;
  } else if (value.is(Kind::kDict) || value.is(Kind::kNamespace)) {
    const Value* found = value.As<Dict>().FindName(name);
    if (found != nullptr) return *found;
  } else if (value.is(Kind::kTuple) && value.As<List>().shown == "group") {
    if (name == "grouper" || name == "list") return value.items()[name == "list"];
  }
  return heap.MakeUndefined(
      absl::StrCat("'", ObjectName(value), "' has no attribute '", text, "'"));
}

Value Item(Heap& heap, Value value, Value index) {
  heap.RequireDefined(value);
  if (value.is(Kind::kDict) && !index.is(Kind::kList) && !index.is(Kind::kDict)) {
    const Value* found = value.As<Dict>().Find(KeyText(heap, index));
    if (found != nullptr) return *found;
  }
  if (value.has_places() && index.is_integer()) {
    const int64_t length = Length(heap, value);
    const int64_t at = index.integer() + (index.integer() < 0 ? length : 0);
    if (at >= 0 && at < length) {
      if (!value.is_string()) return value.items()[at];
      const std::string_view rest = value.text().substr(PrefixBytes(value.text(), at));
      return heap.Text(rest.substr(0, PrefixBytes(rest, 1)), value.is_safe());
    }
  }
  if (index.is_string()) return Attribute(heap, value, index.text());
  return heap.MakeUndefined(ObjectName(value) + " has no element " + ToRepr(heap, index));
}

Value Slice(Heap& heap, Value value, Value from, Value to, Value step_value) {
  heap.RequireDefined(value);
  if (!value.has_places()) heap.TypeError("'", TypeName(value), "' object is not subscriptable");
  const auto bound = [&](Value given, int64_t otherwise) {
    if (given.is(Kind::kNone)) return otherwise;
    if (given.is_integer()) return given.integer();
    heap.TypeError("slice indices must be integers or None");
  };
  const std::vector<Value> all = Items(heap, value);
  const int64_t length = all.size();
  const int64_t step = bound(step_value, 1);
  if (step == 0) heap.ValueError("slice step cannot be zero");
  // Follows Python's slice.indices.
  const int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? length - 1 : length;
  const auto clipped = [&](Value given, int64_t otherwise) {
    if (given.is(Kind::kNone)) return otherwise;
    const int64_t at = bound(given, 0);
    return std::clamp(at < 0 ? at + length : at, lowest, highest);
  };
  const int64_t begin = clipped(from, step < 0 ? highest : lowest);
  const int64_t end = clipped(to, step < 0 ? lowest : highest);
  std::vector<Value> items;
  for (int64_t at = begin; step < 0 ? at > end : at < end;) {
    items.push_back(all[at]);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  if (value.is_string()) return heap.Text(Joined(heap, items, ""), value.is_safe());
  return heap.Make(value.is(Kind::kRange) ? Kind::kList : value.kind(), std::move(items));
}

std::vector<Value> Items(Heap& heap, Value value) {
  if (value.is_undefined()) return {};
  if (value.is(Kind::kLoop)) {
    auto& loop = value.As<Loop>();
    const std::vector<Value>& all = AllItems(loop);
    return {all.begin() + static_cast<int64_t>(loop.at), all.end()};
  }
  std::vector<Value> items;
  if (value.is_string()) {
    heap.SpendEach(value.text().size(), sizeof(std::string_view) + sizeof(Value));
    for (const std::string_view c : Chars(value.text())) items.push_back(heap.Text(c));
  } else if (value.is(Kind::kDict)) {
    heap.SpendEach(value.entries().size(), sizeof(Value));
    for (const auto& [key, unused] : value.entries()) items.push_back(key);
  } else if (value.has_items()) {
    auto& list = value.As<List>();
    const size_t begin = list.next;
    if (value.is(Kind::kGenerator)) list.next = list.items.size();
    heap.SpendEach(list.items.size() - begin, sizeof(Value));
    items.assign(list.items.begin() + begin, list.items.end());
  } else {
    heap.TypeError("'", TypeName(value), "' object is not iterable");
  }
  return items;
}

int64_t Length(Heap& heap, Value value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) {
    heap.Scan(value.text().size());
    return model::CountChars(value.text());
  }
  if (value.is(Kind::kDict)) return value.entries().size();
  if (value.is(Kind::kLoop)) return std::ssize(AllItems(value.As<Loop>()));
  const bool has_length = value.has_items() && !value.is(Kind::kGenerator);
  if (!has_length) heap.TypeError("object of type '", TypeName(value), "' has no len()");
  return value.items().size();
}

Value Escape(Heap& heap, Value value) {
  if (value.is_safe()) return value;
  const std::string text = ToText(heap, value);
  heap.SpendEach(text.size(), 5);
  return heap.Text(
      absl::StrReplaceAll(
          text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}}),
      /*safe=*/true);
}

}  // namespace ovq::jinja
