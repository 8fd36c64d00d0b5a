// Schemas of JSON by their places in one document.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq::constraint {

using Json = nlohmann::ordered_json;

// A schema in the document; equal numbers are the same place.
using SchemaId = int32_t;
// Schemas that all hold for a value; ascending. Without any, every value is allowed.
using SchemaSet = std::vector<SchemaId>;

// No value satisfies the schema at the path, which may or may not matter to what refers to it. All
// other errors are final.
absl::Status UnsatisfiableError(std::string_view path, std::string_view message);
bool IsUnsatisfiable(const absl::Status& status);

class SchemaDocument {
 public:
  // root outlives the document. It is an object.
  explicit SchemaDocument(const Json& root);

  // Checks what concerns the whole document: its dialect and identifiers.
  absl::Status CheckIdentifiers();
  SchemaId root() const { return 0; }
  const Json& json(SchemaId id) const { return *schemas_[id].json; }
  // The JSON pointer, which begins with "#".
  const std::string& path(SchemaId id) const { return schemas_[id].path; }
  // "PATH/KEYWORD: MESSAGE"; InvalidArgument.
  absl::Status Error(SchemaId id, std::string_view keyword, std::string_view message) const;

  // The value of a keyword, which is a schema.
  absl::StatusOr<SchemaId> Child(SchemaId id, const std::string& keyword);
  // ... a list of schemas, at least one.
  absl::StatusOr<std::vector<SchemaId>> ListedChildren(SchemaId id, const std::string& keyword);
  // ... an object of schemas.
  absl::StatusOr<std::vector<std::pair<std::string, SchemaId>>> NamedChildren(
      SchemaId id, const std::string& keyword);
  // The schema that its $ref names.
  absl::StatusOr<SchemaId> Reference(SchemaId id);
  // The schema, or what it refers to where a reference is all that it has.
  absl::StatusOr<SchemaId> Resolve(SchemaId id);
  // Fails if the schema leads to itself with no property or item in between.
  absl::Status CheckEnds(SchemaId id);

 private:
  struct Schema {
    const Json* json;
    std::string path;
  };
  enum class Visit : uint8_t { kOpen, kDone };

  absl::StatusOr<SchemaId> Intern(const Json& json, std::string path);
  absl::Status FindIdentifiers(const Json& json, const std::string& path);
  absl::Status CheckEnds(SchemaId id, int depth);

  std::vector<Schema> schemas_;
  std::unordered_map<const Json*, SchemaId> ids_;
  std::map<std::string, Schema> anchors_;
  std::string base_;  // the root's $id, without a fragment
  std::unordered_map<SchemaId, Visit> visits_;
};

}  // namespace ovq::constraint
