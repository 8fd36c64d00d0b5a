#include "model/constraint/json_document.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::constraint {
namespace {

constexpr int kMostInPlace = 100;  // references and compositions between a value and its keywords

constexpr std::array<std::string_view, 4> kDialects = {
    "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft-07/schema"};

// Keywords whose values are schemas, lists of them or objects of them.
constexpr std::array<std::string_view, 11> kSchemaKeywords = {"additionalProperties",
                                                              "propertyNames",
                                                              "items",
                                                              "contains",
                                                              "not",
                                                              "if",
                                                              "then",
                                                              "else",
                                                              "unevaluatedItems",
                                                              "unevaluatedProperties",
                                                              "contentSchema"};
constexpr std::array<std::string_view, 4> kListKeywords = {"allOf", "anyOf", "oneOf",
                                                           "prefixItems"};
constexpr std::array<std::string_view, 5> kMapKeywords = {"$defs", "definitions", "properties",
                                                          "patternProperties", "dependentSchemas"};

template <size_t n>
bool Has(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsSchema(const Json& json) { return json.is_object() || json.is_boolean(); }

}  // namespace

absl::Status UnsatisfiableError(std::string_view path, std::string_view message) {
  return absl::FailedPreconditionError(absl::StrCat(AbslView(path), ": ", AbslView(message)));
}

bool IsUnsatisfiable(const absl::Status& status) { return absl::IsFailedPrecondition(status); }

SchemaDocument::SchemaDocument(const Json& root) {
  schemas_.push_back({&root, "#"});
  ids_[&root] = 0;
}

absl::Status SchemaDocument::Error(SchemaId id, std::string_view keyword,
                                   std::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(path(id), keyword.empty() ? "" : "/",
                                                 PointerToken(keyword), ": ", AbslView(message)));
}

absl::Status SchemaDocument::CheckIdentifiers() {
  const Json& root = json(0);
  if (const auto dialect = root.find("$schema"); dialect != root.end()) {
    std::string name = dialect->is_string() ? dialect->get<std::string>() : "";
    if (name.ends_with('#')) name.pop_back();
    const bool is_known = Has(kDialects, name);
    if (!is_known) return Error(0, "$schema", "not a dialect of JSON Schema that is known here");
  }
  if (const auto own = root.find("$id"); own != root.end()) {
    if (!own->is_string()) return Error(0, "$id", "must be a string");
    base_ = own->get<std::string>();
    base_.resize(std::min(base_.find('#'), base_.size()));
  }
  return FindIdentifiers(root, "#");
}

absl::Status SchemaDocument::FindIdentifiers(const Json& json, const std::string& path) {
  if (!json.is_object()) return absl::OkStatus();
  if (path != "#" && json.contains("$id")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, "/$id: only the whole document may have an identifier"));
  }
  if (const auto anchor = json.find("$anchor"); anchor != json.end()) {
    const bool is_new =
        anchor->is_string() &&
        anchors_.try_emplace(anchor->get<std::string>(), Schema{&json, path}).second;
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, "/$anchor: must be a string that no other schema has"));
    }
  }
  for (const auto& [keyword, value] : json.items()) {
    const std::string inner = absl::StrCat(path, "/", PointerToken(keyword));
    if (Has(kSchemaKeywords, keyword)) {
      RETURN_IF_ERROR(FindIdentifiers(value, inner));
    } else if (Has(kListKeywords, keyword) && value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) {
        RETURN_IF_ERROR(FindIdentifiers(value[i], absl::StrCat(inner, "/", i)));
      }
    } else if (Has(kMapKeywords, keyword) && value.is_object()) {
      for (const auto& [key, schema] : value.items()) {
        RETURN_IF_ERROR(FindIdentifiers(schema, absl::StrCat(inner, "/", PointerToken(key))));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SchemaId> SchemaDocument::Intern(const Json& json, std::string path) {
  if (!IsSchema(json)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be an object, true or false"));
  }
  const auto [found, is_new] = ids_.try_emplace(&json, static_cast<SchemaId>(schemas_.size()));
  if (is_new) schemas_.push_back({&json, std::move(path)});
  return found->second;
}

absl::StatusOr<SchemaId> SchemaDocument::Child(SchemaId id, const std::string& keyword) {
  return Intern(json(id).at(keyword), absl::StrCat(path(id), "/", PointerToken(keyword)));
}

absl::StatusOr<std::vector<SchemaId>> SchemaDocument::ListedChildren(SchemaId id,
                                                                     const std::string& keyword) {
  const Json& list = json(id).at(keyword);
  if (!list.is_array() || list.empty()) {
    return Error(id, keyword, "must be a list of at least one schema");
  }
  std::vector<SchemaId> children;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(const SchemaId child,
                     Intern(list[i], absl::StrCat(path(id), "/", PointerToken(keyword), "/", i)));
    children.push_back(child);
  }
  return children;
}

absl::StatusOr<std::vector<std::pair<std::string, SchemaId>>> SchemaDocument::NamedChildren(
    SchemaId id, const std::string& keyword) {
  const Json& object = json(id).at(keyword);
  if (!object.is_object()) return Error(id, keyword, "must be an object of schemas");
  std::vector<std::pair<std::string, SchemaId>> children;
  for (const auto& [key, schema] : object.items()) {
    ASSIGN_OR_RETURN(
        const SchemaId child,
        Intern(schema, absl::StrCat(path(id), "/", PointerToken(keyword), "/", PointerToken(key))));
    children.emplace_back(key, child);
  }
  return children;
}

absl::StatusOr<SchemaId> SchemaDocument::Reference(SchemaId id) {
  const Json& value = json(id).at("$ref");
  if (!value.is_string()) return Error(id, "$ref", "must be a string");
  const auto& text = value.get_ref<const std::string&>();
  std::string_view fragment = text;
  if (!base_.empty() && text.starts_with(base_)) fragment.remove_prefix(base_.size());
  const std::string missing = absl::StrCat("nothing in this document is at ", Quoted(text));
  if (!fragment.empty() && fragment[0] != '#') return Error(id, "$ref", missing);
  if (!fragment.empty()) fragment.remove_prefix(1);
  if (fragment.empty()) return root();
  const std::optional<std::string> decoded = PercentDecoded(fragment);
  if (!decoded) return Error(id, "$ref", missing);
  if ((*decoded)[0] != '/') {
    const auto anchor = anchors_.find(*decoded);
    if (anchor == anchors_.end()) return Error(id, "$ref", missing);
    return Intern(*anchor->second.json, anchor->second.path);
  }
  const Json* const at = FindAt(*schemas_[0].json, *decoded);
  if (at == nullptr) return Error(id, "$ref", missing);
  return Intern(*at, absl::StrCat("#", *decoded));
}

absl::StatusOr<SchemaId> SchemaDocument::Resolve(SchemaId id) {
  for (int i = 0; i < kMostInPlace; ++i) {
    if (!json(id).is_object() || json(id).size() != 1 || !json(id).contains("$ref")) return id;
    ASSIGN_OR_RETURN(id, Reference(id));
  }
  return Error(id, "$ref", "leads through too many references, or to itself");
}

absl::Status SchemaDocument::CheckEnds(SchemaId id) { return CheckEnds(id, 0); }

absl::Status SchemaDocument::CheckEnds(SchemaId id, int depth) {
  const auto [visit, is_new] = visits_.try_emplace(id, Visit::kOpen);
  if (!is_new) {
    if (visit->second == Visit::kDone) return absl::OkStatus();
    return Error(id, "", "refers to itself with no property or item in between");
  }
  if (depth > kMostInPlace) {
    return Error(id, "", absl::StrCat("more than ", kMostInPlace, " schemas refer to each other"));
  }
  std::vector<SchemaId> next;
  if (json(id).is_object()) {
    if (json(id).contains("$ref")) {
      ASSIGN_OR_RETURN(const SchemaId target, Reference(id));
      next.push_back(target);
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      if (!json(id).contains(keyword)) continue;
      ASSIGN_OR_RETURN(const std::vector<SchemaId> children, ListedChildren(id, keyword));
      next.insert(next.end(), children.begin(), children.end());
    }
  }
  for (const SchemaId target : next) RETURN_IF_ERROR(CheckEnds(target, depth + 1));
  visits_[id] = Visit::kDone;
  return absl::OkStatus();
}

}  // namespace ovq::constraint
