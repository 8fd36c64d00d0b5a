// Schemas of a document as shapes.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/constraint/json_document.h"
#include "model/constraint/json_shape.h"
#include "model/constraint/json_string.h"

namespace ovq::constraint {

// Reads schemas as shapes, and keeps them. Messages begin with the JSON pointer of the culprit.
class ShapeReader {
 public:
  // All outlive the reader.
  ShapeReader(SchemaDocument& document, StringLanguages& languages, Budget& budget)
      : document_(document), languages_(languages), budget_(budget) {}

  // The alternatives: all schemas of the set hold where one of the shapes does. Some, and all, may
  // be unsatisfiable.
  absl::StatusOr<std::shared_ptr<const Shapes>> Read(const SchemaSet& set);
  StringLanguages& languages() { return languages_; }
  SchemaDocument& document() { return document_; }
  Budget& budget() { return budget_; }

 private:
  struct Expansion {
    Shape shape = {};
    std::vector<SchemaId> todo = {};
    std::set<SchemaId> done = {};
    std::vector<std::vector<SchemaId>> choices = {};  // one of each has to hold as well
  };

  absl::Status Expand(Expansion expansion, Shapes& out);
  absl::Status Apply(SchemaId id, Expansion& expansion);
  absl::Status ApplyInPlace(SchemaId id, const std::string& keyword, Expansion& expansion);
  absl::Status ApplyExclusive(SchemaId id, Expansion& expansion);
  absl::Status ApplyPattern(SchemaId id, Shape& shape);
  absl::Status ApplyArray(SchemaId id, Shape& shape);
  absl::Status ApplyObject(SchemaId id, Shape& shape);

  SchemaDocument& document_;
  StringLanguages& languages_;
  Budget& budget_;
  std::map<SchemaSet, std::shared_ptr<const Shapes>> shapes_;
};

}  // namespace ovq::constraint
