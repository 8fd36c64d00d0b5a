#include "model/constraint/json_shape_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/constraint/json_keywords.h"
#include "model/constraint/json_logic.h"

namespace ovq::constraint {
namespace {

constexpr size_t kMostShapes = 500;  // alternatives of one value

}  // namespace

absl::StatusOr<std::shared_ptr<const Shapes>> ShapeReader::Read(const SchemaSet& set) {
  if (const auto found = shapes_.find(set); found != shapes_.end()) return found->second;
  for (const SchemaId id : set) RETURN_IF_ERROR(document_.CheckEnds(id));
  Expansion expansion{.todo = set};
  expansion.shape.path = set.empty() ? "#" : document_.path(set[0]);
  auto shapes = std::make_shared<Shapes>();
  RETURN_IF_ERROR(Expand(std::move(expansion), *shapes));
  shapes_[set] = shapes;
  return shapes;
}

absl::Status ShapeReader::Expand(Expansion expansion, Shapes& out) {
  while (!expansion.todo.empty()) {
    const SchemaId id = expansion.todo.back();
    expansion.todo.pop_back();
    if (!expansion.done.insert(id).second) continue;
    RETURN_IF_ERROR(Apply(id, expansion));
  }
  if (expansion.choices.empty()) {
    if (out.size() >= kMostShapes) {
      return absl::InvalidArgumentError(absl::StrCat(
          expansion.shape.path, ": combines to more than ", kMostShapes, " alternatives"));
    }
    out.push_back(std::move(expansion.shape));
    return absl::OkStatus();
  }
  const std::vector<SchemaId> branches = std::move(expansion.choices.back());
  expansion.choices.pop_back();
  for (const SchemaId branch : branches) {
    RETURN_IF_ERROR(budget_.Spend(100));
    Expansion chosen = expansion;
    chosen.todo = {branch};
    if (branches.size() > 1 && expansion.choices.empty())
      chosen.shape.path = document_.path(branch);
    RETURN_IF_ERROR(Expand(std::move(chosen), out));
  }
  return absl::OkStatus();
}

absl::Status ShapeReader::Apply(SchemaId id, Expansion& expansion) {
  const Json& schema = document_.json(id);
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) expansion.shape.types = 0;
    return absl::OkStatus();
  }
  for (const auto& [keyword, value] : schema.items()) {
    RETURN_IF_ERROR(budget_.Spend(10 + static_cast<int64_t>(value.size())));
    if (IsAnnotation(keyword) || IsTrivial(keyword, value, schema)) continue;
    const absl::StatusOr<bool> is_simple = ApplySimpleKeyword(keyword, value, expansion.shape);
    if (!is_simple.ok()) {
      return document_.Error(id, keyword, std::string(is_simple.status().message()));
    }
    if (!*is_simple) RETURN_IF_ERROR(ApplyInPlace(id, keyword, expansion));
  }
  RETURN_IF_ERROR(ApplyArray(id, expansion.shape));
  return ApplyObject(id, expansion.shape);
}

absl::Status ShapeReader::ApplyInPlace(SchemaId id, const std::string& keyword,
                                       Expansion& expansion) {
  static const std::set<std::string_view>& others =
      *new std::set<std::string_view>{"properties", "patternProperties", "additionalProperties",
                                      "required",   "propertyNames",     "prefixItems",
                                      "items"};
  const Json& schema = document_.json(id);
  const bool is_alone = !schema.contains("$ref") && !schema.contains("allOf") &&
                        !schema.contains("anyOf") && !schema.contains("oneOf");
  if (others.contains(keyword)) return absl::OkStatus();  // see ApplyArray, ApplyObject
  if (is_alone && (keyword == "unevaluatedProperties" || keyword == "unevaluatedItems")) {
    return absl::OkStatus();
  }
  if (keyword == "pattern") return ApplyPattern(id, expansion.shape);
  if (keyword == "$ref") {
    ASSIGN_OR_RETURN(const SchemaId target, document_.Reference(id));
    expansion.todo.push_back(target);
    return absl::OkStatus();
  }
  if (keyword == "oneOf") return ApplyExclusive(id, expansion);
  if (keyword == "allOf" || keyword == "anyOf") {
    ASSIGN_OR_RETURN(std::vector<SchemaId> schemas, document_.ListedChildren(id, keyword));
    if (keyword == "anyOf") {
      expansion.choices.push_back(std::move(schemas));
    } else {
      expansion.todo.insert(expansion.todo.end(), schemas.rbegin(), schemas.rend());
    }
    return absl::OkStatus();
  }
  const bool forbids_all =
      keyword == "not" && (schema.at("not") == true || schema.at("not") == Json::object());
  if (forbids_all) {
    expansion.shape.types = 0;
    return absl::OkStatus();
  }
  const std::string_view reason = RefusedBecause(keyword);
  return document_.Error(id, keyword, reason.empty() ? "not a keyword that is known" : reason);
}

absl::Status ShapeReader::ApplyExclusive(SchemaId id, Expansion& expansion) {
  ASSIGN_OR_RETURN(std::vector<SchemaId> branches, document_.ListedChildren(id, "oneOf"));
  if (branches.size() > 64) return document_.Error(id, "oneOf", "has more than 64 branches");
  SchemaLogic logic([this](const SchemaSet& set) { return Read(set); }, languages_, budget_);
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t k = i + 1; k < branches.size(); ++k) {
      ASSIGN_OR_RETURN(const bool is_disjoint, logic.AreDisjoint({branches[i]}, {branches[k]}));
      if (is_disjoint) continue;
      return document_.Error(
          id, "oneOf",
          absl::StrCat("branches ", i, " and ", k,
                       " may hold for the same value, and \"exactly one\" is only kept where they "
                       "can't; anyOf allows both"));
    }
  }
  expansion.choices.push_back(std::move(branches));
  return absl::OkStatus();
}

absl::Status ShapeReader::ApplyPattern(SchemaId id, Shape& shape) {
  const Json& value = document_.json(id).at("pattern");
  if (!value.is_string()) return document_.Error(id, "pattern", "must be a string");
  const auto& pattern = value.get_ref<const std::string&>();
  const absl::StatusOr<const Language*> language = languages_.Pattern(pattern);
  if (!language.ok()) {
    return document_.Error(id, "pattern", std::string(language.status().message()));
  }
  shape.string.patterns.push_back(pattern);
  return absl::OkStatus();
}

absl::Status ShapeReader::ApplyArray(SchemaId id, Shape& shape) {
  const Json& schema = document_.json(id);
  ArrayPart part;
  if (schema.contains("prefixItems")) {
    ASSIGN_OR_RETURN(part.prefix, document_.ListedChildren(id, "prefixItems"));
  }
  for (const char* keyword : {"items", "unevaluatedItems"}) {
    if (part.rest || !schema.contains(keyword)) continue;
    ASSIGN_OR_RETURN(part.rest, document_.Child(id, keyword));
  }
  if (part.rest || !part.prefix.empty()) shape.arrays.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status ShapeReader::ApplyObject(SchemaId id, Shape& shape) {
  const Json& schema = document_.json(id);
  ObjectPart part;
  if (schema.contains("properties")) {
    ASSIGN_OR_RETURN(part.properties, document_.NamedChildren(id, "properties"));
  }
  if (schema.contains("patternProperties")) {
    ASSIGN_OR_RETURN(part.patterns, document_.NamedChildren(id, "patternProperties"));
    for (const auto& [pattern, inner] : part.patterns) {
      const absl::StatusOr<const Language*> language = languages_.Pattern(pattern);
      if (!language.ok()) {
        return document_.Error(inner, "", std::string(language.status().message()));
      }
    }
  }
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    if (part.rest || !schema.contains(keyword)) continue;
    ASSIGN_OR_RETURN(part.rest, document_.Child(id, keyword));
  }
  if (part.rest || !part.properties.empty() || !part.patterns.empty()) {
    shape.objects.push_back(std::move(part));
  }
  if (schema.contains("propertyNames")) {
    ASSIGN_OR_RETURN(const SchemaId names, document_.Child(id, "propertyNames"));
    const auto at = std::lower_bound(shape.names.begin(), shape.names.end(), names);
    if (at == shape.names.end() || *at != names) shape.names.insert(at, names);
  }
  if (!schema.contains("required")) return absl::OkStatus();
  const Json& required = schema.at("required");
  if (!required.is_array()) return document_.Error(id, "required", "must be a list of names");
  std::set<std::string> known(shape.required.begin(), shape.required.end());
  for (const Json& name : required) {
    if (!name.is_string()) return document_.Error(id, "required", "must be a list of names");
    if (known.insert(name.get<std::string>()).second) shape.required.push_back(name);
  }
  return absl::OkStatus();
}

}  // namespace ovq::constraint
