#include "model/constraint/json_shape.h"

#include <algorithm>

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

ListedValues::ListedValues(std::vector<const Json*> values) : list(std::move(values)) {
  for (const Json* value : list) sorted.emplace(*value);
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
