#include "model/constraint/json_logic.h"

#include <algorithm>

#include "base/status_macros.h"

namespace ovq::constraint {
namespace {

constexpr int kDeepestDisjoint = 4;

bool AreDisjointNumbers(const NumberBounds& a, const NumberBounds& b) {
  const auto is_above = [](const NumberBounds& low, const NumberBounds& high) {
    if (!low.most || !high.least) return false;
    return *low.most < *high.least ||
           (*low.most == *high.least && (low.excludes_most || high.excludes_least));
  };
  return is_above(a, b) || is_above(b, a);
}

size_t CodePoints(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

absl::StatusOr<bool> SchemaLogic::Allows(const SchemaSet& set, const Json& value) {
  ASSIGN_OR_RETURN(const auto shapes, read_(set));
  for (const Shape& shape : *shapes) {
    ASSIGN_OR_RETURN(const bool allows, Allows(shape, value));
    if (allows) return true;
  }
  return false;
}

absl::StatusOr<bool> SchemaLogic::Allows(const Shape& shape, const Json& value) {
  const Types type = TypeBit(value);
  if ((shape.types & type) == 0) return false;
  if (shape.values && !shape.values->Has(value)) return false;
  RETURN_IF_ERROR(budget_.Spend(20));
  switch (type) {
    case kNumber: {
      const std::optional<Decimal> number = ExactDecimal(value);
      return number && shape.number.Allows(*number);
    }
    case kString: {
      const auto& text = value.get_ref<const std::string&>();
      const auto length = static_cast<int64_t>(CodePoints(text));
      if (length < shape.string.least || length > shape.string.most.value_or(length)) return false;
      if (!shape.string.has_form()) return true;
      StringBounds form = shape.string;
      form.least = 0;
      form.most.reset();
      ASSIGN_OR_RETURN(const Language* texts, languages_.Texts(form));
      return texts->MatchesUtf8(text);
    }
    case kArray:
      return AllowsArray(shape, value);
    case kObject:
      return AllowsObject(shape, value);
    default:
      return true;
  }
}

absl::StatusOr<SchemaSet> SchemaLogic::Property(const Shape& shape, const std::string& name) {
  absl::Status status;
  const SchemaSet schemas = PropertySchemas(shape, &name, [&](const std::string& pattern) {
    const absl::StatusOr<const Language*> language = languages_.Pattern(pattern);
    status.Update(language.status());
    return language.ok() && (*language)->MatchesUtf8(name);
  });
  RETURN_IF_ERROR(status);
  return schemas;
}

absl::StatusOr<bool> SchemaLogic::AllowsObject(const Shape& shape, const Json& value) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < shape.min_properties || size > shape.max_properties.value_or(size)) return false;
  for (const std::string& name : shape.required) {
    if (!value.contains(name)) return false;
  }
  for (const auto& [name, property] : value.items()) {
    ASSIGN_OR_RETURN(const SchemaSet schemas, Property(shape, name));
    ASSIGN_OR_RETURN(const bool allows, Allows(schemas, property));
    if (!allows) return false;
    ASSIGN_OR_RETURN(const bool allows_name, Allows(shape.names, Json(name)));
    if (!allows_name) return false;
  }
  return true;
}

absl::StatusOr<bool> SchemaLogic::AllowsArray(const Shape& shape, const Json& value) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < shape.min_items || size > shape.max_items.value_or(size)) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    ASSIGN_OR_RETURN(const bool allows, Allows(shape.ItemSchemas(i), value[i]));
    if (!allows) return false;
  }
  return true;
}

absl::StatusOr<bool> SchemaLogic::AreDisjoint(const SchemaSet& a, const SchemaSet& b) {
  if (depth_ >= kDeepestDisjoint) return false;
  ASSIGN_OR_RETURN(const auto shapes_a, read_(a));
  ASSIGN_OR_RETURN(const auto shapes_b, read_(b));
  if (shapes_a->size() * shapes_b->size() > 4096) return false;
  ++depth_;
  bool is_disjoint = true;
  for (const Shape& shape_a : *shapes_a) {
    for (const Shape& shape_b : *shapes_b) {
      if (!is_disjoint) break;
      ASSIGN_OR_RETURN(is_disjoint, AreDisjoint(shape_a, shape_b));
    }
  }
  --depth_;
  return is_disjoint;
}

absl::StatusOr<bool> SchemaLogic::AreDisjoint(const Shape& a, const Shape& b) {
  for (const auto& [listed, other] : {std::make_pair(&a, &b), std::make_pair(&b, &a)}) {
    if (!listed->values) continue;
    for (const Json* value : listed->values->list) {
      ASSIGN_OR_RETURN(const bool in_listed, Allows(*listed, *value));
      if (!in_listed) continue;
      ASSIGN_OR_RETURN(const bool in_other, Allows(*other, *value));
      if (in_other) return false;
    }
    return true;
  }
  RETURN_IF_ERROR(budget_.Spend(100));
  const uint8_t types = a.types & b.types;
  if ((types & (kNull | kBoolean)) != 0) return false;
  if ((types & kNumber) != 0 && !AreDisjointNumbers(a.number, b.number)) return false;
  if ((types & kString) != 0) {
    ASSIGN_OR_RETURN(const bool are, AreDisjointStrings(a.string, b.string));
    if (!are) return false;
  }
  if ((types & kArray) != 0) {
    ASSIGN_OR_RETURN(const bool are, AreDisjointArrays(a, b));
    if (!are) return false;
  }
  if ((types & kObject) != 0) {
    ASSIGN_OR_RETURN(const bool are, AreDisjointObjects(a, b));
    if (!are) return false;
  }
  return true;
}

absl::StatusOr<bool> SchemaLogic::AreDisjointStrings(const StringBounds& a, const StringBounds& b) {
  StringBounds both = a;
  both.patterns.insert(both.patterns.end(), b.patterns.begin(), b.patterns.end());
  both.formats.insert(both.formats.end(), b.formats.begin(), b.formats.end());
  both.least = std::max(a.least, b.least);
  if (b.most) both.most = std::min(*b.most, a.most.value_or(*b.most));
  if (both.most && both.least > *both.most) return true;
  if (!both.has_form()) return false;
  ASSIGN_OR_RETURN(const Language* texts, languages_.Texts(both));
  return texts->IsEmpty();
}

absl::StatusOr<bool> SchemaLogic::AreDisjointArrays(const Shape& a, const Shape& b) {
  if (a.max_items && *a.max_items < b.min_items) return true;
  if (b.max_items && *b.max_items < a.min_items) return true;
  const auto n_items =
      static_cast<size_t>(std::min<int64_t>(std::max(a.min_items, b.min_items), 16));
  for (size_t i = 0; i < n_items; ++i) {
    ASSIGN_OR_RETURN(const bool are, AreDisjoint(a.ItemSchemas(i), b.ItemSchemas(i)));
    if (are) return true;
  }
  return false;
}

// Objects are of one kind only where a property that one of them must have differs.
absl::StatusOr<bool> SchemaLogic::AreDisjointObjects(const Shape& a, const Shape& b) {
  for (const auto& [one, other] : {std::make_pair(&a, &b), std::make_pair(&b, &a)}) {
    for (const std::string& name : one->required) {
      ASSIGN_OR_RETURN(const SchemaSet schemas, Property(*one, name));
      ASSIGN_OR_RETURN(const SchemaSet others, Property(*other, name));
      ASSIGN_OR_RETURN(const bool are, AreDisjoint(schemas, others));
      if (are) return true;
    }
  }
  return false;
}

}  // namespace ovq::constraint
