// Attribute and Item of operators.h.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"

namespace ovq::jinja {
namespace {

// The object's name in Jinja's error messages.
std::string ObjectName(Value value) {
  return value.is_none() ? "None" : absl::StrCat(TypeName(value), " object");
}

constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListChanges[] = {"append", "clear", "pop",    "reverse",
                                             "insert", "sort",  "extend", "remove"};

// Whether the sandbox forbids an attribute that the value has: those that change the value, and
// Python's internal ones.
bool IsUnsafeAttribute(Kind kind, std::string_view name) {
  return (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) ||
         (kind == Kind::kDict && std::ranges::count(kDictChanges, name) > 0) ||
         (kind == Kind::kList && std::ranges::count(kListChanges, name) > 0);
}

// loop.index etc.; kMissing if there is none of that name.
Value LoopAttribute(Heap& heap, const Loop& loop, std::string_view name) {
  const int64_t at = loop.at;
  const int64_t length = loop.items.size();
  if (name == "index") return Value::Int(at + 1);
  if (name == "index0") return Value::Int(at);
  if (name == "revindex") return Value::Int(length - at);
  if (name == "revindex0") return Value::Int(length - at - 1);
  if (name == "first") return Value::Bool(at == 0);
  if (name == "last") return Value::Bool(at + 1 == length);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(loop.depth);
  if (name == "depth0") return Value::Int(loop.depth - 1);
  if (name == "previtem") {
    return at > 0 ? loop.items[loop.at - 1] : heap.MakeUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    return at + 1 < length ? loop.items[loop.at + 1] : heap.MakeUndefined("there is no next item");
  }
  return Value();
}

}  // namespace

Value Attribute(Heap& heap, Value value, std::string_view name) {
  if (value.is_undefined()) heap.Undefined(value);
  const std::string text(name);
  if (IsUnsafeAttribute(value.kind(), name)) {
    return heap.MakeUndefined(absl::StrCat("access to attribute '", text, "' of '", TypeName(value),
                                           "' object is unsafe."),
                              /*unsafe=*/true);
  }
  if (const Builtin* method = FindMethod(value.kind(), name); method != nullptr) {
    return heap.MakeCallable({.name = method->name, .builtin = method, .self = value});
  }
  if (value.kind() == Kind::kLoop) {
    const Value found = LoopAttribute(heap, value.loop(), name);
    if (found.given()) return found;
  } else if (value.kind() == Kind::kDict || value.kind() == Kind::kNamespace) {
    const Value* found = value.dict().FindName(name);
    if (found != nullptr) return *found;
  } else if (value.kind() == Kind::kTuple && value.list().shown == "group") {
    if (name == "grouper" || name == "list") return value.list().items[name == "list"];
  }
  return heap.MakeUndefined(
      absl::StrCat("'", ObjectName(value), "' has no attribute '", text, "'"));
}

Value Item(Heap& heap, Value value, Value index) {
  if (value.is_undefined()) heap.Undefined(value);
  if (value.kind() == Kind::kDict && index.kind() != Kind::kList && index.kind() != Kind::kDict) {
    const Value* found = value.dict().Find(KeyText(heap, index));
    if (found != nullptr) return *found;
  }
  if (value.has_places() && index.is_integer()) {
    const int64_t length = Length(heap, value);
    const int64_t at = index.integer() + (index.integer() < 0 ? length : 0);
    if (at >= 0 && at < length) {
      if (!value.is_string()) return value.list().items[at];
      const std::string_view rest = value.text().substr(PrefixBytes(value.text(), at));
      return heap.Text(std::string(rest.substr(0, PrefixBytes(rest, 1))), value.string().safe);
    }
  }
  if (index.is_string()) return Attribute(heap, value, index.text());
  return heap.MakeUndefined(
      absl::StrCat(ObjectName(value), " has no element ", ToRepr(heap, index)));
}

}  // namespace ovq::jinja
