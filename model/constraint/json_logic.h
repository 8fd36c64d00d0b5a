// SchemaLogic: which values schemas allow, and whether any value satisfies two.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "model/constraint/json_shape.h"
#include "model/constraint/json_string.h"

namespace ovq::constraint {

class SchemaLogic {
 public:
  using Read = std::function<absl::StatusOr<std::shared_ptr<const Shapes>>(const SchemaSet&)>;
  // languages and budget outlive this.
  SchemaLogic(Read read, StringLanguages& languages, Budget& budget)
      : read_(std::move(read)), languages_(languages), budget_(budget) {}

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

  const Read read_;
  StringLanguages& languages_;
  Budget& budget_;
  int depth_ = 0;  // of AreDisjoint
};

}  // namespace ovq::constraint
