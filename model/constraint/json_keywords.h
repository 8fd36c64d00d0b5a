// Keywords of schemas that say something of a value by themselves, and those that say nothing.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/constraint/json_shape.h"

namespace ovq::constraint {

// Whether the keyword describes a schema and constrains nothing.
bool IsAnnotation(std::string_view keyword);
// Why the keyword is refused, "" for one that is not known to be.
std::string_view RefusedBecause(std::string_view keyword);
// Whether the keyword with this value, though otherwise refused, constrains nothing.
bool IsTrivial(const std::string& keyword, const Json& value, const Json& schema);

// Adds the keyword to the shape; false if it is none of types, values, numbers, lengths and counts.
// InvalidArgument, without a path, for a value that the keyword can't have.
absl::StatusOr<bool> ApplySimpleKeyword(const std::string& keyword, const Json& value,
                                        Shape& shape);

}  // namespace ovq::constraint
