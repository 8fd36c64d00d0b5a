// Filters of lists.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"

namespace ovq::jinja {
namespace {

Value Generator(Context& e, std::vector<Value> items) {
  return e.heap.Make(Kind::kGenerator, std::move(items));
}

// Follows `path`, attributes and numbers separated by dots, from the item; the item itself if
// `path` was not given.
Value Place(Context& e, Value item, Value path) {
  if (!path.given() || path.is_none()) return item;
  if (path.is_integer()) return Item(e.heap, item, path);
  const std::string text = ToText(e.heap, path);
  for (const std::string_view part : Split(text, ".", SIZE_MAX, /*from_right=*/false)) {
    int64_t number = 0;
    const bool is_number = part.size() < 10 && IsDigits(part) && (part[0] & 0x80) == 0;
    if (is_number) number = std::atoll(std::string(part).c_str());
    item = Item(e.heap, item, is_number ? Value::Int(number) : e.heap.Text(std::string(part)));
  }
  return item;
}

// The key for sorting and comparing: text in lower case unless case matters.
Value SortKey(Context& e, Value value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return e.heap.Text(Lower(value.text()));
}

using Keyed = std::pair<Value, Value>;  // key, item

std::vector<Keyed> KeyedItems(Context& e, const std::vector<Value>& items, Value path,
                              bool case_sensitive) {
  std::vector<Keyed> keyed;
  e.heap.SpendEach(items.size(), sizeof(Keyed));
  for (const Value item : items) {
    keyed.emplace_back(SortKey(e, Place(e, item, path), case_sensitive), item);
  }
  return keyed;
}

void SortByKey(Context& e, std::vector<Keyed>& keyed, bool reverse) {
  std::ranges::stable_sort(keyed, [&](const Keyed& a, const Keyed& b) {
    return reverse ? Less(e.heap, b.first, a.first) : Less(e.heap, a.first, b.first);
  });
}

std::vector<Value> UnkeyedItems(const std::vector<Keyed>& keyed) {
  std::vector<Value> items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return items;
}

Value First(Context& e, const Args& args) {
  if (args[0].kind() == Kind::kGenerator) {
    List& list = args[0].list();
    if (list.next < list.items.size()) return list.items[list.next++];
  } else if (const std::vector<Value> items = Items(e.heap, args[0]); !items.empty()) {
    return items.front();
  }
  return e.heap.MakeUndefined("No first item, sequence was empty.");
}

Value Last(Context& e, const Args& args) {
  if (args[0].kind() == Kind::kGenerator) e.heap.TypeError("'generator' object is not reversible");
  const std::vector<Value> items = Items(e.heap, args[0]);
  return items.empty() ? e.heap.MakeUndefined("No last item, sequence was empty.") : items.back();
}

Value ListFilter(Context& e, const Args& args) {
  return e.heap.Make(Kind::kList, Items(e.heap, args[0]));
}

Value Join(Context& e, const Args& args) {
  std::vector<Value> items = Items(e.heap, args[0]);
  for (Value& item : items) item = Place(e, item, args[2]);
  const std::string separator = args[1].given() ? ToText(e.heap, args[1]) : "";
  return e.heap.Text(Joined(e.heap, items, separator));
}

std::vector<Value> Pairs(Context& e, Value dict) {
  if (dict.kind() != Kind::kDict) e.heap.TypeError("Can only get item pairs from a mapping.");
  return Items(e.heap, FindMethod(Kind::kDict, "items")->call(e, {{dict}, {}}));
}

Value ItemsFilter(Context& e, const Args& args) {
  if (args[0].is_undefined()) return Generator(e, {});
  return Generator(e, Pairs(e, args[0]));
}

Value DictSort(Context& e, const Args& args) {
  const std::string by = args[2].given() ? ToText(e.heap, args[2]) : "key";
  if (by != "key" && by != "value") {
    e.heap.Fail(ErrorKind::kType, "You can only sort by either \"key\" or \"value\"");
  }
  if (args[0].is_undefined()) e.heap.Undefined(args[0]);
  const std::vector<Value> pairs = Pairs(e, args[0]);
  std::vector<Keyed> keyed =
      KeyedItems(e, pairs, Value::Int(by == "key" ? 0 : 1), args.TruthOr(1, false));
  SortByKey(e, keyed, args.TruthOr(3, false));
  return e.heap.Make(Kind::kList, UnkeyedItems(keyed));
}

// Keys are lists with a part for each comma-separated attribute.
Value Sort(Context& e, const Args& args) {
  std::vector<Value> paths = {args[3]};
  if (args[3].is_string()) {
    paths.clear();
    for (const std::string_view part : Split(args[3].text(), ",", SIZE_MAX, /*from_right=*/false)) {
      paths.push_back(e.heap.Text(std::string(part)));
    }
  }
  std::vector<Keyed> keyed;
  for (const Value item : Items(e.heap, args[0])) {
    std::vector<Value> keys;
    for (const Value path : paths) {
      keys.push_back(SortKey(e, Place(e, item, path), args.TruthOr(2, false)));
    }
    keyed.emplace_back(e.heap.Make(Kind::kList, std::move(keys)), item);
  }
  SortByKey(e, keyed, args.TruthOr(1, false));
  return e.heap.Make(Kind::kList, UnkeyedItems(keyed));
}

Value Reverse(Context& e, const Args& args) {
  if (args[0].is_string()) {
    return Slice(e.heap, args[0], Value::None(), Value::None(), Value::Int(-1));
  }
  std::vector<Value> items = Items(e.heap, args[0]);
  std::ranges::reverse(items);
  return Generator(e, std::move(items));
}

Value Unique(Context& e, const Args& args) {
  const Value seen = e.heap.MakeDict();
  std::vector<Value> items;
  for (const auto& [key, item] :
       KeyedItems(e, Items(e.heap, args[0]), args[2], args.TruthOr(1, false))) {
    if (seen.dict().Find(KeyText(e.heap, key)) != nullptr) continue;
    e.heap.Set(seen, key, item);
    items.push_back(item);
  }
  return Generator(e, std::move(items));
}

Value Map(Context& e, const Args& args) {
  if (!Truth(args[0])) return Generator(e, {});  // also values that cannot be iterated
  std::vector<Value> items = Items(e.heap, args[0]);
  Value path, otherwise;
  for (const auto& [name, value] : args.named) {
    if (name == "attribute") path = value;
    if (name == "default") otherwise = value;
  }
  if (args.at.size() == 1 && !path.given()) e.heap.TypeError("map requires a filter argument");
  for (Value& item : items) {
    if (args.at.size() == 1) {
      item = Place(e, item, path);
      if (item.is_undefined() && otherwise.given()) item = otherwise;
      continue;
    }
    Args of_filter = {{args.at.begin() + 1, args.at.end()}, args.named};
    of_filter.at[0] = item;
    item = CallFilter(e, ToText(e.heap, args[1]), std::move(of_filter));
  }
  return Generator(e, std::move(items));
}

// The items whose value at `path` passes the test at args[first]; without a test, those that are
// true.
Value Select(Context& e, const Args& args, size_t first, Value path, bool wanted) {
  std::vector<Value> items;
  if (!Truth(args[0])) return Generator(e, {});  // also values that cannot be iterated
  for (const Value item : Items(e.heap, args[0])) {
    const Value place = Place(e, item, path);
    bool passes = false;
    if (args.at.size() <= first) {
      passes = Truth(place);
    } else {
      Args of_test = {{args.at.begin() + first, args.at.end()}, args.named};
      of_test.at[0] = place;
      passes = CallTest(e, ToText(e.heap, args[first]), std::move(of_test));
    }
    if (passes == wanted) items.push_back(item);
  }
  return Generator(e, std::move(items));
}
template <bool kWanted>
Value SelectFilter(Context& e, const Args& args) {
  return Select(e, args, 1, Value(), kWanted);
}
template <bool kWanted>
Value SelectAttr(Context& e, const Args& args) {
  return Select(e, args, 2, args[1], kWanted);
}

Value GroupBy(Context& e, const Args& args) {
  const bool case_sensitive = args.TruthOr(3, false);
  const auto key_of = [&](Value item) {
    const Value key = Place(e, item, args[1]);
    return key.is_undefined() && args[2].given() ? args[2] : key;
  };
  std::vector<Keyed> keyed;
  for (const Value item : Items(e.heap, args[0])) {
    keyed.emplace_back(SortKey(e, key_of(item), case_sensitive), item);
  }
  SortByKey(e, keyed, /*reverse=*/false);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    while (end < keyed.size() && Equal(e.heap, keyed[end].first, keyed[begin].first)) ++end;
    if (end == begin) ++end;  // NaN keys are not equal to themselves
    std::vector<Value> items;
    for (size_t i = begin; i < end; ++i) items.push_back(keyed[i].second);
    const Value key = key_of(keyed[begin].second);
    const Value group = e.heap.Make(Kind::kList, std::move(items));
    groups.push_back(e.heap.Make(Kind::kTuple, {key, group}, "group"));
  }
  return e.heap.Make(Kind::kList, std::move(groups));
}

Value Batch(Context& e, const Args& args) {
  const int64_t size = args.IntegerOr(e.heap, 1, 0);
  const auto length = [](const std::vector<Value>& items) {
    return static_cast<int64_t>(items.size());
  };
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value item : Items(e.heap, args[0])) {
    if (length(batch) == size) {
      batches.push_back(e.heap.Make(Kind::kList, std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (args[2].given() && !args[2].is_none() && length(batch) < size) {
      const size_t n = size;
      e.heap.SpendEach(n - batch.size(), sizeof(Value));
      batch.resize(n, args[2]);
    }
    batches.push_back(e.heap.Make(Kind::kList, std::move(batch)));
  }
  return Generator(e, std::move(batches));
}

Value Sum(Context& e, const Args& args) {
  Value sum = args[2].given() ? args[2] : Value::Int(0);
  if (sum.is_string()) e.heap.TypeError("sum() can't sum strings");
  for (const Value item : Items(e.heap, args[0])) {
    sum = Binary(e.heap, "+", sum, Place(e, item, args[1]));
  }
  return sum;
}

template <bool kMax>
Value Extreme(Context& e, const Args& args) {
  const std::vector<Keyed> keyed =
      KeyedItems(e, Items(e.heap, args[0]), args[2], args.TruthOr(1, false));
  if (keyed.empty()) return e.heap.MakeUndefined("No aggregated item, sequence was empty.");
  const Keyed* best = &keyed[0];
  for (const Keyed& each : keyed) {
    const bool is_better =
        kMax ? Less(e.heap, best->first, each.first) : Less(e.heap, each.first, best->first);
    if (is_better) best = &each;
  }
  return best->second;
}

constexpr Builtin kListFilters[] = {
    {"first", "seq", First},
    {"last", "seq", Last},
    {"list", "value", ListFilter},
    {"join", "value d? attribute?", Join},
    {"items", "value", ItemsFilter},
    {"dictsort", "value case_sensitive? by? reverse?", DictSort},
    {"sort", "value reverse? case_sensitive? attribute?", Sort},
    {"reverse", "value", Reverse},
    {"unique", "value case_sensitive? attribute?", Unique},
    {"map", "value * **", Map},
    {"select", "value * **", SelectFilter<true>},
    {"reject", "value * **", SelectFilter<false>},
    {"selectattr", "value attribute * **", SelectAttr<true>},
    {"rejectattr", "value attribute * **", SelectAttr<false>},
    {"groupby", "value attribute default? case_sensitive?", GroupBy},
    {"batch", "value linecount fill_with?", Batch},
    {"sum", "iterable attribute? start?", Sum},
    {"min", "value case_sensitive? attribute?", Extreme<false>},
    {"max", "value case_sensitive? attribute?", Extreme<true>},
};

}  // namespace

const Builtin* FindListFilter(std::string_view name) { return FindIn(kListFilters, name); }

}  // namespace ovq::jinja
