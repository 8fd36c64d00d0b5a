#include "model/chat_template/attributes.h"

#include "absl/strings/str_cat.h"
#include "model/chat_template/methods.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"

namespace ovq::jinja {
namespace {

// The object's name in Jinja's error messages.
std::string ObjectName(Value value) {
  return value.is_none() ? "None" : absl::StrCat(TypeName(value), " object");
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
  const bool has_places = value.is_string() || value.kind() == Kind::kList ||
                          value.kind() == Kind::kTuple || value.kind() == Kind::kRange;
  if (has_places && index.is_integer()) {
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
