#include "model/chat_template/value.h"

#include <bit>
#include <cmath>

namespace ovq::jinja {

const std::vector<Value>& Value::items() const { return As<List>().items; }

const std::vector<std::pair<Value, Value>>& Value::entries() const { return As<Dict>().entries; }

const Value* Dict::Find(const std::string& key) const {
  const auto place = places.find(key);
  return place == places.end() ? nullptr : &entries[place->second].second;
}

void Heap::RequireDefined(Value value) const {
  if (!value.is_undefined()) return;
  const auto& [why, unsafe] = value.As<Undefined>();
  Fail(unsafe ? ErrorKind::kSecurity : ErrorKind::kUndefined, why);
}

void Heap::Spend(size_t bytes) {
  if (bytes > limits.max_value_bytes - bytes_) {
    Fail(ErrorKind::kLimit, "more than ", limits.max_value_bytes, " bytes of values");
  }
  bytes_ += bytes;
  Scan(bytes);
}

void Heap::SpendEach(size_t n, size_t size) {
  size_t bytes = 0;
  Spend(__builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes);
}

Value Heap::Text(std::string_view text, bool safe) {
  Spend(sizeof(Str) + text.size());
  return Value::FromPointer(Kind::kString, Keep(strings_, {std::string(text), safe}));
}

Value Heap::Make(Kind kind, std::vector<Value> items, std::string shown) {
  Spend(sizeof(List) + items.size() * sizeof(Value));
  return Value::FromPointer(kind, Keep(lists_, {std::move(items), std::move(shown)}));
}

Value Heap::MakeUndefined(std::string why, bool unsafe) {
  Spend(sizeof(Undefined) + why.size());
  return Value::FromPointer(Kind::kUndefined, Keep(undefined_, {std::move(why), unsafe}));
}

Value Heap::MakeDict(Kind kind) {
  Spend(sizeof(Dict));
  return Value::FromPointer(kind, &dicts_.emplace_back());
}

void Heap::Set(Value dict, Value key, Value value) {
  std::string text = KeyText(*this, key);
  Spend(2 * sizeof(Value) + sizeof(std::string) + sizeof(size_t) + text.size());
  auto& [entries, places] = dict.As<Dict>();
  const auto [place, is_new] = places.try_emplace(std::move(text), entries.size());
  if (is_new) entries.emplace_back(key, value);
  entries[place->second].second = value;
}

void Heap::SetAll(Value dict, const std::vector<std::pair<std::string_view, Value>>& named) {
  for (const auto& [name, value] : named) Set(dict, Text(name), value);
}

Value Heap::MakeCallable(Callable callable) {
  Spend(sizeof(Callable));
  return Value::FromPointer(Kind::kCallable, Keep(callables_, callable));
}

Frame* Heap::MakeFrame(const Frame* parent) {
  Spend(sizeof(Frame));
  return Keep(frames_, {parent, {}});
}

void Heap::SetName(Frame* frame, std::string_view name, Value value) {
  const auto [place, is_new] = frame->names.insert_or_assign(name, value);
  if (is_new) Spend(sizeof(*place));
}

Loop* Heap::MakeLoop(Loop loop) {
  Spend(sizeof(Loop));
  return Keep(loops_, std::move(loop));
}

Level::Level(Heap& heap, int line) : heap_(heap), outer_line_(heap.line_) {
  if (heap.depth_ >= heap.limits.max_depth) {
    heap.Fail(ErrorKind::kLimit, "nested more than ", heap.limits.max_depth, " levels deep");
  }
  heap.Step();
  ++heap.depth_;
  if (line > 0) heap.line_ = line;
}

std::string TypeName(Value value) {
  if (value.is_safe()) return "Markup";
  if (value.is(Kind::kCallable) && value.As<Callable>().macro != nullptr) return "Macro";
  constexpr const char* kNames[] = {
      // in the order of Kind
      "Undefined", "Undefined",  "NoneType", "bool",           "int",       "float", "str",
      "list",      "tuple",      "range",    "view of a dict", "generator", "dict",  "Namespace",
      "function",  "LoopContext"};
  return kNames[static_cast<size_t>(value.kind())];
}

bool Truth(Value value) {
  if (value.is_number()) return value.number() != 0;
  if (value.is_string()) return !value.text().empty();
  if (value.is(Kind::kDict)) return !value.entries().empty();
  if (value.is(Kind::kGenerator)) return true;
  return value.has_items() ? !value.items().empty() : value.kind() > Kind::kNone;
}

std::string KeyText(Heap& heap, Value key) {
  const Level level(heap);
  switch (key.kind()) {
    case Kind::kString:
      heap.Spend(key.text().size());
      return "s" + std::string(key.text());
    case Kind::kBool:
    case Kind::kInt:
      return absl::StrCat("i", key.integer());
    case Kind::kFloat: {
      const double number = key.number();
      const bool whole = number >= -0x1p63 && number < 0x1p63 && number == std::floor(number);
      return whole ? absl::StrCat("i", static_cast<int64_t>(number))
                   : absl::StrCat("f", absl::Hex(std::bit_cast<uint64_t>(number)));
    }
    case Kind::kNone:
      return "n";
    case Kind::kTuple: {
      std::string text = "(";
      for (const Value item : key.items()) {
        const std::string part = KeyText(heap, item);
        heap.Spend(part.size());
        absl::StrAppend(&text, part.size(), ":", part);
      }
      return text;
    }
    case Kind::kList:
    case Kind::kDict:
      heap.TypeError("unhashable type: '", TypeName(key), "'");
    default:
      return absl::StrCat("o", reinterpret_cast<uintptr_t>(key.object()));
  }
}

}  // namespace ovq::jinja
