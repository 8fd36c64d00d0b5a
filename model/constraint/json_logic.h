// What schemas say of given values, and of each other.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/constraint/json_shape.h"

namespace ovq::constraint {

class SchemaLogic {
 public:
  explicit SchemaLogic(ShapeReader& reader) : reader_(reader) {}

  absl::StatusOr<bool> Allows(const SchemaSet& set, const Json& value);
  absl::StatusOr<bool> Allows(const Shape& shape, const Json& value);
  absl::StatusOr<SchemaSet> Property(const Shape& shape, const std::string& name);
  // Whether no value satisfies both sets; false also where that is hard to say.
  absl::StatusOr<bool> AreDisjoint(const SchemaSet& a, const SchemaSet& b);

 private:
  absl::StatusOr<bool> AllowsObject(const Shape& shape, const Json& value);
  absl::StatusOr<bool> AllowsArray(const Shape& shape, const Json& value);
  absl::StatusOr<bool> AreDisjoint(const Shape& a, const Shape& b);
  absl::StatusOr<bool> AreDisjointStrings(const StringBounds& a, const StringBounds& b);
  absl::StatusOr<bool> AreDisjointArrays(const Shape& a, const Shape& b);
  absl::StatusOr<bool> AreDisjointObjects(const Shape& a, const Shape& b);

  ShapeReader& reader_;
  int depth_ = 0;  // of AreDisjoint
};

}  // namespace ovq::constraint
