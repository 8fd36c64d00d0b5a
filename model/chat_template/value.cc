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
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.string().safe ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return "view of a dict";
    case Kind::kGenerator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return value.callable().macro != nullptr ? "Macro" : "function";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "";
}

bool Truth(Value value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().entries().empty();
    case Kind::kGenerator:
    case Kind::kNamespace:
    case Kind::kCallable:
    case Kind::kLoop:
      return true;
  }
  return true;
}

}  // namespace ovq::jinja
