#include "server/http/body_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

// A whole number in any notation; unset for other values and beyond 64 bits.
std::optional<int64_t> Whole(const Json& json) {
  if (json.is_number_unsigned()) return json.get<uint64_t>();  // keeps the bits: seeds may be any
  if (json.is_number_integer()) return json.get<int64_t>();
  if (!json.is_number_float()) return std::nullopt;
  const double value = json.get<double>();
  constexpr double kLimit = 9007199254740992.0;  // 2^53: beyond it doubles are not exact
  if (!(value >= -kLimit && value <= kLimit)) return std::nullopt;
  const auto whole = static_cast<int64_t>(value);
  if (static_cast<double>(whole) != value) return std::nullopt;
  return whole;
}
std::optional<uint32_t> Whole32(const Json& json) {
  const std::optional<int64_t> whole = Whole(json);
  const bool fits = whole && *whole >= 0 && *whole <= std::numeric_limits<uint32_t>::max();
  return fits ? std::optional<uint32_t>(*whole) : std::nullopt;
}

// The field as `convert` reads it, which gives none for a value that is not `expected`.
template <class Convert>
auto Read(BodyFields& fields, const char* name, const char* expected, Convert convert) {
  const Json* const json = fields.Any(name);
  auto value = json == nullptr ? std::nullopt : convert(*json);
  if (json != nullptr && !value) fields.Expected(name, expected, *json);
  return value;
}

}  // namespace

std::string Shown(const Json& json) {
  constexpr size_t kMost = 40;
  if (json.is_object()) return "an object";
  if (json.is_array()) return "a list";
  if (json.is_string() && json.get_ref<const std::string&>().size() > kMost) return "a long text";
  return Dump(json);
}

BodyFields::BodyFields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const Json* BodyFields::Any(const char* name) {
  read_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void BodyFields::Expected(const std::string& name, const char* expected, const Json& got) {
  Fail(engine::BadField(Path(name), expected, Shown(got)));
}

std::optional<std::string> BodyFields::Text(const char* name) {
  return Read(*this, name, "a text", [](const Json& json) {
    return json.is_string() ? std::optional(json.get<std::string>()) : std::nullopt;
  });
}

std::optional<bool> BodyFields::Bool(const char* name) {
  return Read(*this, name, "true or false", [](const Json& json) {
    return json.is_boolean() ? std::optional(json.get<bool>()) : std::nullopt;
  });
}

std::optional<float> BodyFields::Number(const char* name) {
  return Read(*this, name, "a number", [](const Json& json) {
    return json.is_number() ? std::optional<float>(json.get<double>()) : std::nullopt;
  });
}

std::optional<int64_t> BodyFields::Integer(const char* name) {
  return Read(*this, name, "a whole number", Whole);
}

std::optional<uint32_t> BodyFields::Count(const char* name) {
  return Read(*this, name, "a whole number from 0 to 4294967295", Whole32);
}

std::vector<uint32_t> BodyFields::Ids(const char* name) {
  const Json* const json = Any(name);
  std::vector<uint32_t> ids;
  if (json == nullptr) return ids;
  if (!json->is_array()) {
    Expected(name, "a list of token ids", *json);
    return ids;
  }
  ids.reserve(json->size());
  for (const Json& entry : *json) {
    const std::optional<uint32_t> id = Whole32(entry);
    if (!id) {
      Expected(absl::StrCat(name, "[", ids.size(), "]"), "a token id", entry);
      return {};
    }
    ids.push_back(*id);
  }
  return ids;
}

std::optional<BodyFields> BodyFields::Object(const char* name, const char* expected) {
  const Json* const json = Any(name);
  if (json == nullptr || IsDefault(*json)) return std::nullopt;
  if (json->is_object()) return std::make_optional<BodyFields>(*json, Path(name) + ".");
  Expected(name, expected, *json);
  return std::nullopt;
}

bool IsDefault(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().empty();
  if (json.is_object()) return std::ranges::all_of(json, IsDefault);
  return json.is_null() || (json.is_array() && json.empty());
}

void BodyFields::Refuse(const char* name, const char* expected, const std::vector<Json>& accepted) {
  const Json* const json = Any(name);
  if (json == nullptr || IsDefault(*json)) return;
  if (std::ranges::find(accepted, *json) != accepted.end()) return;
  Fail(Unsupported(Path(name), expected));
}

absl::Status BodyFields::Finish() {
  if (!status_.ok()) return status_;
  for (const auto& entry : object_.items()) {
    if (read_.contains(entry.key())) continue;
    const std::string name = IsName(entry.key()) ? entry.key() : Quoted(entry.key());
    // The name is the caller's text, which the log must not get.
    return engine::WithLogText(
        Unsupported(absl::StrCat(prefix_, name), "a field that docs/http.md lists"),
        "a field that this server does not know");
  }
  return absl::OkStatus();
}

}  // namespace ovq::server
