#include "model/constraint/json_keywords.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::constraint {
namespace {

constexpr int64_t kMostCount = int64_t{1} << 40;

absl::Status InvalidValue(std::string_view message) {
  return absl::InvalidArgumentError(AbslView(message));
}

absl::Status ApplyType(const Json& value, Shape& shape) {
  static const auto& types = *new std::map<std::string, Types, std::less<>>{
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  uint8_t allowed = 0;
  bool has_fractions = false;
  const auto add = [&](const Json& name) {
    const auto found =
        name.is_string() ? types.find(name.get_ref<const std::string&>()) : types.end();
    if (found == types.end()) return false;
    allowed |= found->second;
    has_fractions |= found->first == "number";
    return true;
  };
  bool is_valid = value.is_string() ? add(value) : value.is_array() && !value.empty();
  if (value.is_array()) is_valid = is_valid && std::all_of(value.begin(), value.end(), add);
  if (!is_valid) {
    return InvalidValue(
        "must be, or list, of: null, boolean, number, integer, string, array, object");
  }
  shape.types &= allowed;
  if (!has_fractions) shape.number.is_integer = true;
  return absl::OkStatus();
}

void ApplyValues(std::vector<const Json*> values, Shape& shape) {
  if (shape.values) {
    std::erase_if(values, [&](const Json* value) { return !shape.values->Has(*value); });
  }
  shape.values = std::make_shared<const ListedValues>(std::move(values));
}

// The stricter of two bounds, and whether it excludes its number.
void Tighten(const Decimal& bound, bool excludes, bool is_least, std::optional<Decimal>& known,
             bool& known_excludes) {
  const bool is_stricter = !known || (is_least ? bound > *known : bound < *known);
  if (is_stricter) {
    known = bound;
    known_excludes = excludes;
  } else if (bound == *known) {
    known_excludes |= excludes;
  }
}

absl::StatusOr<bool> ApplyNumber(const std::string& keyword, const Json& value,
                                 NumberBounds& number) {
  const bool is_least = keyword == "minimum" || keyword == "exclusiveMinimum";
  const bool is_most = keyword == "maximum" || keyword == "exclusiveMaximum";
  if (!is_least && !is_most && keyword != "multipleOf") return false;
  const std::optional<Decimal> decimal = value.is_number() ? ExactDecimal(value) : std::nullopt;
  if (!decimal) return InvalidValue("must be a number between -1e400 and 1e400");
  if (is_least) {
    Tighten(*decimal, keyword == "exclusiveMinimum", true, number.least, number.excludes_least);
  } else if (is_most) {
    Tighten(*decimal, keyword == "exclusiveMaximum", false, number.most, number.excludes_most);
  } else if (decimal->is_negative || decimal->is_zero()) {
    return InvalidValue("must be above 0");
  } else if (decimal->whole.size() + decimal->fraction.size() > kMostDivisorDigits) {
    return InvalidValue(absl::StrCat("must have at most ", kMostDivisorDigits, " digits"));
  } else if (std::find(number.multiples.begin(), number.multiples.end(), *decimal) ==
             number.multiples.end()) {
    number.multiples.push_back(*decimal);
  }
  return true;
}

absl::StatusOr<int64_t> ParseCount(const Json& value) {
  const std::optional<Decimal> decimal = value.is_number() ? ExactDecimal(value) : std::nullopt;
  if (!decimal || decimal->is_negative || !decimal->is_integer()) {
    return InvalidValue("must be an integer of at least 0");
  }
  int64_t count = 0;
  for (const char digit : decimal->whole) {
    count = std::min(count * 10 + (digit - '0'), kMostCount);
  }
  return count;
}

absl::StatusOr<bool> ApplyCount(const std::string& keyword, const Json& value, Shape& shape) {
  static const auto& leasts = *new std::map<std::string, int64_t& (*)(Shape&)>{
      {"minLength", [](Shape& s) -> int64_t& { return s.string.least; }},
      {"minItems", [](Shape& s) -> int64_t& { return s.min_items; }},
      {"minProperties", [](Shape& s) -> int64_t& { return s.min_properties; }},
  };
  static const auto& mosts = *new std::map<std::string, std::optional<int64_t>& (*)(Shape&)>{
      {"maxLength", [](Shape& s) -> std::optional<int64_t>& { return s.string.most; }},
      {"maxItems", [](Shape& s) -> std::optional<int64_t>& { return s.max_items; }},
      {"maxProperties", [](Shape& s) -> std::optional<int64_t>& { return s.max_properties; }},
  };
  if (const auto least = leasts.find(keyword); least != leasts.end()) {
    ASSIGN_OR_RETURN(const int64_t count, ParseCount(value));
    int64_t& known = least->second(shape);
    known = std::max(known, count);
    return true;
  }
  const auto most = mosts.find(keyword);
  if (most == mosts.end()) return false;
  ASSIGN_OR_RETURN(const int64_t count, ParseCount(value));
  std::optional<int64_t>& known = most->second(shape);
  known = std::min(known.value_or(count), count);
  return true;
}

}  // namespace

bool IsAnnotation(std::string_view keyword) {
  static const auto& annotations = *new std::set<std::string_view>{
      "$schema",      "$id",       "$anchor",     "$comment",        "$defs",
      "definitions",  "title",     "default",     "examples",        "deprecated",
      "readOnly",     "writeOnly", "description", "contentEncoding", "contentMediaType",
      "contentSchema"};
  return annotations.contains(keyword);
}

std::string_view RefusedBecause(std::string_view keyword) {
  static const auto& reasons = *new std::map<std::string_view, std::string_view>{
      {"not", "what must not hold is not kept"},
      {"if", "conditions are not kept"},
      {"uniqueItems", "items that differ from each other are not kept"},
      {"contains", "what only some items satisfy is not kept"},
      {"dependentRequired", "conditions are not kept"},
      {"dependentSchemas", "conditions are not kept"},
      {"dependencies", "conditions are not kept"},
      {"unevaluatedItems", "only kept where no other schema applies to the value"},
      {"unevaluatedProperties", "only kept where no other schema applies to the value"},
      {"additionalItems", "prefixItems and items say it since draft 2020-12"},
      {"$dynamicRef", "dynamic references are not followed"},
      {"$dynamicAnchor", "dynamic references are not followed"},
      {"$recursiveRef", "dynamic references are not followed"},
      {"$recursiveAnchor", "dynamic references are not followed"},
      {"$vocabulary", "only the vocabularies of the standard are known"},
  };
  const auto found = reasons.find(keyword);
  return found == reasons.end() ? "" : found->second;
}

bool IsTrivial(const std::string& keyword, const Json& value, const Json& schema) {
  if (keyword == "uniqueItems" || keyword == "not") return value == false;
  if (keyword == "then" || keyword == "else") return !schema.contains("if");
  if (keyword == "if") return !schema.contains("then") && !schema.contains("else");
  if (keyword == "minContains" || keyword == "maxContains") return !schema.contains("contains");
  if (keyword == "dependentRequired" || keyword == "dependentSchemas" ||
      keyword == "dependencies") {
    return value.is_object() && value.empty();
  }
  if (keyword == "unevaluatedItems" || keyword == "unevaluatedProperties") return value == true;
  return false;
}

absl::StatusOr<bool> ApplySimpleKeyword(const std::string& keyword, const Json& value,
                                        Shape& shape) {
  if (keyword == "type") {
    RETURN_IF_ERROR(ApplyType(value, shape));
    return true;
  }
  if (keyword == "const") {
    ApplyValues({&value}, shape);
    return true;
  }
  if (keyword == "enum") {
    if (!value.is_array()) return InvalidValue("must be a list of values");
    std::vector<const Json*> values;
    for (const Json& item : value) values.push_back(&item);
    ApplyValues(std::move(values), shape);
    return true;
  }
  if (keyword == "format") {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (!IsKnownFormat(name)) {
      return InvalidValue(absl::StrCat("must be one of: ", KnownFormats()));
    }
    shape.string.formats.push_back(name);
    return true;
  }
  ASSIGN_OR_RETURN(const bool is_number, ApplyNumber(keyword, value, shape.number));
  if (is_number) return true;
  return ApplyCount(keyword, value, shape);
}

}  // namespace ovq::constraint
