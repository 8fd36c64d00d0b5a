#include "model/chat_template/value.h"

namespace ovq::jinja {

void Dict::Set(std::string key, Value name, Value value) {
  const auto [place, is_new] = places_.try_emplace(std::move(key), entries_.size());
  if (is_new) {
    entries_.emplace_back(name, value);
  } else {
    entries_[place->second].second = value;
  }
}

const Value* Dict::Find(const std::string& key) const {
  const auto place = places_.find(key);
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

const Value* Dict::FindName(std::string_view name) const {
  std::string key = "s";
  return Find(key += name);
}

std::string TypeName(Value value) {
  if (value.is_string() && value.string().safe) return "Markup";
  if (value.kind() == Kind::kCallable && value.callable().macro != nullptr) return "Macro";
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
  if (value.kind() == Kind::kDict) return !value.dict().entries().empty();
  if (value.kind() == Kind::kGenerator) return true;
  return value.has_items() ? !value.list().items.empty() : value.kind() > Kind::kNone;
}

}  // namespace ovq::jinja
