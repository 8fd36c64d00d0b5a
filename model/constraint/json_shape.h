// Shapes: what all keywords that apply to one value say together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/constraint/json_document.h"
#include "model/constraint/json_number.h"
#include "model/constraint/json_string.h"

namespace ovq::constraint {

enum Types : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
  kAllTypes = 63,
};
Types TypeBit(const Json& value);

// The value of a number. A float without a fraction is the integer that it is: 2^60 has more digits
// than are printed to tell it from other floats.
std::optional<Decimal> ExactDecimal(const Json& number);

// One schema's keywords of objects: `rest` (additionalProperties) is for the properties that it
// neither names nor has a pattern for.
struct ObjectPart {
  std::vector<std::pair<std::string, SchemaId>> properties = {};
  std::vector<std::pair<std::string, SchemaId>> patterns = {};
  std::optional<SchemaId> rest = {};
};

// One schema's keywords of arrays.
struct ArrayPart {
  std::vector<SchemaId> prefix = {};
  std::optional<SchemaId> rest = {};
};

// A text that is the same for equal values, and for no others: 1 is 1.0, and keys have no order.
std::string EqualityKey(const Json& value);

struct ListedValues {
  std::vector<const Json*> list = {};
  std::set<std::string> keys = {};  // of all in `list`

  explicit ListedValues(std::vector<const Json*> values);
  bool Has(const Json& value) const { return keys.contains(EqualityKey(value)); }
};

// A conjunction. Bounds of a type that `types` does not have mean nothing.
struct Shape {
  std::string path = {};  // of the first schema, for messages
  uint8_t types = kAllTypes;
  std::shared_ptr<const ListedValues> values = {};  // of enum and const; null: any
  NumberBounds number = {};
  StringBounds string = {};
  std::vector<ArrayPart> arrays = {};
  int64_t min_items = 0;
  std::optional<int64_t> max_items = {};
  std::vector<ObjectPart> objects = {};
  std::vector<std::string> required = {};
  int64_t min_properties = 0;
  std::optional<int64_t> max_properties = {};
  SchemaSet names = {};  // of propertyNames

  size_t n_prefix() const;                    // items with schemas of their own
  SchemaSet ItemSchemas(size_t index) const;  // index: up to n_prefix(), which is all others'
};

// A property's schemas are those of its name and of the patterns that fit it, or the rest's.
// `fits` says whether the name fits a pattern.
template <class Fits>
SchemaSet PropertySchemas(const Shape& shape, const std::string* name, const Fits& fits) {
  std::set<SchemaId> schemas;
  for (const ObjectPart& part : shape.objects) {
    bool is_known = false;
    for (const auto& [key, schema] : part.properties) {
      if (name == nullptr || key != *name) continue;
      is_known = true;
      schemas.insert(schema);
    }
    for (const auto& [pattern, schema] : part.patterns) {
      if (!fits(pattern)) continue;
      is_known = true;
      schemas.insert(schema);
    }
    if (!is_known && part.rest) schemas.insert(*part.rest);
  }
  return {schemas.begin(), schemas.end()};
}

using Shapes = std::vector<Shape>;

}  // namespace ovq::constraint
