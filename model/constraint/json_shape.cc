#include "model/constraint/json_shape.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ovq::constraint {

Types TypeBit(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNull;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::string:
      return kString;
    case Json::value_t::array:
      return kArray;
    case Json::value_t::object:
      return kObject;
    default:
      return kNumber;
  }
}

std::optional<Decimal> ExactDecimal(const Json& number) {
  if (!number.is_number_float()) return ParseDecimal(number.dump());
  const auto value = number.get<double>();
  return ParseDecimal(value == std::floor(value) ? absl::StrFormat("%.0f", value) : number.dump());
}

std::string EqualityKey(const Json& value) {
  if (value.is_number()) {
    // Not as the parser compares numbers: to it -1 is 2^64 - 1, and 2^53 + 1 is 2^53 as a double.
    const std::optional<Decimal> number = ExactDecimal(value);
    if (!number) return value.dump();
    return absl::StrCat(number->is_negative ? "-" : "", number->whole, ".", number->fraction);
  }
  if (!value.is_structured()) return value.dump();
  std::string key = value.is_object() ? "{" : "[";
  if (value.is_object()) {
    std::map<std::string_view, const Json*> members;
    for (const auto& [name, member] : value.items()) members[name] = &member;
    for (const auto& [name, member] : members) {
      absl::StrAppend(&key, Json(name).dump(), ":", EqualityKey(*member), ",");
    }
  } else {
    for (const Json& item : value) absl::StrAppend(&key, EqualityKey(item), ",");
  }
  return key + (value.is_object() ? '}' : ']');
}

ListedValues::ListedValues(std::vector<const Json*> values) : list(std::move(values)) {
  for (const Json* value : list) keys.insert(EqualityKey(*value));
}

size_t Shape::n_prefix() const {
  size_t n = 0;
  for (const ArrayPart& part : arrays) n = std::max(n, part.prefix.size());
  return n;
}

SchemaSet Shape::ItemSchemas(size_t index) const {
  std::set<SchemaId> schemas;
  for (const ArrayPart& part : arrays) {
    if (index < part.prefix.size()) {
      schemas.insert(part.prefix[index]);
    } else if (part.rest) {
      schemas.insert(*part.rest);
    }
  }
  return {schemas.begin(), schemas.end()};
}

}  // namespace ovq::constraint
