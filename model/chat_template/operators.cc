#include "model/chat_template/operators.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

// Compares integers and floats by their exact values.
int Order(Value a, Value b) {
  if (a.is_integer() && b.is_integer()) {
    return (a.integer() > b.integer()) - (a.integer() < b.integer());
  }
  const auto x = a.is_integer() ? static_cast<long double>(a.integer()) : a.number();
  const auto y = b.is_integer() ? static_cast<long double>(b.integer()) : b.number();
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;  // 2: one is NaN
}

[[noreturn]] void NoOrder(Heap& heap, std::string_view name, Value a, Value b) {
  heap.TypeError(absl::StrCat("'", std::string(name), "' not supported between instances of '",
                              TypeName(a), "' and '", TypeName(b), "'"));
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
      return std::ranges::equal(a.list().items, b.list().items,
                                [&](Value x, Value y) { return Equal(heap, x, y); });
    case Kind::kDict: {
      if (a.dict().entries().size() != b.dict().entries().size()) return false;
      for (const auto& [key, value] : a.dict().entries()) {
        const Value* other = b.dict().Find(KeyText(heap, key));
        if (other == nullptr || !Equal(heap, value, *other)) return false;
      }
      return true;
    }
    default:
      return a.object() == b.object();
  }
}

bool Less(Heap& heap, Value a, Value b) {
  const Level level(heap);
  if (a.is_undefined() || b.is_undefined()) heap.Undefined(a.is_undefined() ? a : b);
  if (a.is_number() && b.is_number()) return Order(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    heap.Scan(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // UTF-8 sorts by code point
  }
  if (a.kind() != b.kind() || (a.kind() != Kind::kList && a.kind() != Kind::kTuple)) {
    NoOrder(heap, "<", a, b);
  }
  const std::vector<Value>&x = a.list().items, &y = b.list().items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!Equal(heap, x[i], y[i])) return Less(heap, x[i], y[i]);
  }
  return x.size() < y.size();
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

bool Contains(Heap& heap, Value container, Value item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        heap.TypeError(
            absl::StrCat("'in <string>' requires string as left operand, not ", TypeName(item)));
      }
      heap.Scan(container.text().size());
      return FindBytes(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict:
      return container.dict().Find(KeyText(heap, item)) != nullptr;
    default:
      return std::ranges::any_of(Items(heap, container),
                                 [&](Value each) { return Equal(heap, each, item); });
  }
}

std::vector<Value> Items(Heap& heap, Value value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kString: {
      heap.SpendEach(value.text().size(), sizeof(std::string_view) + sizeof(Value));
      std::vector<Value> items;
      for (const std::string_view c : Chars(value.text())) {
        items.push_back(heap.Text(std::string(c)));
      }
      return items;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kGenerator: {
      List& list = value.list();
      const size_t begin = list.next;
      if (value.kind() == Kind::kGenerator) list.next = list.items.size();
      heap.SpendEach(list.items.size() - begin, sizeof(Value));
      return {list.items.begin() + begin, list.items.end()};
    }
    case Kind::kDict: {
      heap.SpendEach(value.dict().entries().size(), sizeof(Value));
      std::vector<Value> keys;
      for (const auto& [key, unused] : value.dict().entries()) keys.push_back(key);
      return keys;
    }
    case Kind::kLoop:
      return {value.loop().items.begin() + value.loop().at, value.loop().items.end()};
    default:
      heap.TypeError(absl::StrCat("'", TypeName(value), "' object is not iterable"));
  }
}

int64_t Length(Heap& heap, Value value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      heap.Scan(value.text().size());
      return static_cast<int64_t>(model::CountChars(value.text()));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<int64_t>(value.list().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries().size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.loop().items.size());
    default:
      heap.TypeError(absl::StrCat("object of type '", TypeName(value), "' has no len()"));
  }
}

Value Slice(Heap& heap, Value value, Value from, Value to, Value step_value) {
  if (value.is_undefined()) heap.Undefined(value);
  if (!value.has_places()) {
    heap.TypeError(absl::StrCat("'", TypeName(value), "' object is not subscriptable"));
  }
  const auto bound = [&](Value given, int64_t otherwise) {
    if (given.is_none()) return otherwise;
    if (given.is_integer()) return given.integer();
    heap.TypeError("slice indices must be integers or None");
  };
  const std::vector<Value> all = Items(heap, value);
  const int64_t length = all.size();
  const int64_t step = bound(step_value, 1);
  if (step == 0) heap.Fail(ErrorKind::kType, "ValueError: slice step cannot be zero");
  // Follows Python's slice.indices.
  const int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? length - 1 : length;
  const auto clipped = [&](Value given, int64_t otherwise) {
    if (given.is_none()) return otherwise;
    const int64_t at = bound(given, 0);
    return std::clamp(at < 0 ? at + length : at, lowest, highest);
  };
  const int64_t begin = clipped(from, step < 0 ? highest : lowest);
  const int64_t end = clipped(to, step < 0 ? lowest : highest);
  std::vector<Value> items;
  std::string text;
  for (int64_t at = begin; step < 0 ? at > end : at < end;) {
    const Value item = all[at];
    if (value.is_string()) {
      text += item.text();
    } else {
      items.push_back(item);
    }
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  if (value.is_string()) return heap.Text(std::move(text), value.string().safe);
  return heap.Make(value.kind() == Kind::kRange ? Kind::kList : value.kind(), std::move(items));
}

Value Escape(Heap& heap, Value value) {
  if (value.is_string() && value.string().safe) return value;
  const std::string text = ToText(heap, value);
  heap.SpendEach(text.size(), 5);
  return heap.Text(
      absl::StrReplaceAll(
          text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}}),
      /*safe=*/true);
}

}  // namespace ovq::jinja
