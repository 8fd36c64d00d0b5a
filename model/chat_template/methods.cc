// The methods of dict, list, tuple and loop.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"

namespace ovq::jinja {
namespace {

Value DictGet(Context& e, const Args& args) {
  const Value* found = args[0].dict().Find(KeyText(e.heap, args[1]));
  return found != nullptr ? *found : args[2].given() ? args[2] : Value::None();
}

std::vector<Value> Entries(Heap& heap, const Dict& dict, bool keys, bool values) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries()) {
    heap.Step();
    items.push_back(keys && values ? heap.Make(Kind::kTuple, {key, value}) : keys ? key : value);
  }
  return items;
}

Value DictItems(Context& e, const Args& args) {
  return e.heap.Make(Kind::kView, Entries(e.heap, args[0].dict(), true, true), "dict_items");
}
Value DictKeys(Context& e, const Args& args) {
  return e.heap.Make(Kind::kView, Entries(e.heap, args[0].dict(), true, false), "dict_keys");
}
Value DictValues(Context& e, const Args& args) {
  return e.heap.Make(Kind::kView, Entries(e.heap, args[0].dict(), false, true), "dict_values");
}

Value ListIndex(Context& e, const Args& args) {
  const std::vector<Value>& items = args[0].list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equal(e.heap, items[i], args[1])) return Value::Int(i);
  }
  e.heap.Fail(ErrorKind::kType, "ValueError: the value is not in the list");
}

Value ListCount(Context& e, const Args& args) {
  const std::vector<Value>& items = args[0].list().items;
  return Value::Int(
      std::ranges::count_if(items, [&](Value item) { return Equal(e.heap, item, args[1]); }));
}

Value LoopCycle(Context& e, const Args& args) {
  if (args.at.size() == 1) e.heap.TypeError("no items for cycling given");
  return args[1 + args[0].loop().at % (args.at.size() - 1)];
}

Value LoopChanged(Context& e, const Args& args) {
  Loop& loop = args[0].loop();
  const std::vector<Value> now(args.at.begin() + 1, args.at.end());
  const bool same =
      loop.has_changed && std::ranges::equal(now, loop.last_changed,
                                             [&](Value a, Value b) { return Equal(e.heap, a, b); });
  e.heap.Spend(now.size() * sizeof(Value));
  loop.last_changed = now;
  loop.has_changed = true;
  return Value::Bool(!same);
}

constexpr Builtin kDictMethods[] = {
    {"get", "self key default?", DictGet},
    {"items", "self", DictItems},
    {"keys", "self", DictKeys},
    {"values", "self", DictValues},
};
constexpr Builtin kListMethods[] = {
    {"index", "self value", ListIndex},
    {"count", "self value", ListCount},
};
constexpr Builtin kLoopMethods[] = {
    {"cycle", "self *", LoopCycle},
    {"changed", "self *", LoopChanged},
};

}  // namespace

const Builtin* FindMethod(Kind kind, std::string_view name) {
  switch (kind) {
    case Kind::kString:
      return FindStrMethod(name);
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
