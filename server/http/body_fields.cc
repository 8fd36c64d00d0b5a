#include "server/http/body_fields.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_errors.h"

namespace ovq {
namespace {

using Json = nlohmann::json;

// A whole number in any notation; unset for other values and beyond 64 bits.
std::optional<int64_t> Whole(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto value = json.get<uint64_t>();
    // Keeps the bits: seeds may be any.
    return static_cast<int64_t>(value);
  }
  if (json.is_number_integer()) return json.get<int64_t>();
  if (!json.is_number_float()) return std::nullopt;
  const double value = json.get<double>();
  constexpr double kLimit = 9007199254740992.0;  // 2^53: beyond it doubles are not exact
  if (!(value >= -kLimit && value <= kLimit)) return std::nullopt;
  const auto whole = static_cast<int64_t>(value);
  if (static_cast<double>(whole) != value) return std::nullopt;
  return whole;
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
  Fail(BadField(Path(name), expected, Shown(got)));
}

std::optional<std::string> BodyFields::Text(const char* name) {
  const Json* const json = Any(name);
  if (json == nullptr) return std::nullopt;
  if (json->is_string()) return json->get<std::string>();
  Expected(name, "a text", *json);
  return std::nullopt;
}

std::optional<bool> BodyFields::Bool(const char* name) {
  const Json* const json = Any(name);
  if (json == nullptr) return std::nullopt;
  if (json->is_boolean()) return json->get<bool>();
  Expected(name, "true or false", *json);
  return std::nullopt;
}

std::optional<float> BodyFields::Number(const char* name) {
  const Json* const json = Any(name);
  if (json == nullptr) return std::nullopt;
  if (json->is_number()) return static_cast<float>(json->get<double>());
  Expected(name, "a number", *json);
  return std::nullopt;
}

std::optional<int64_t> BodyFields::Integer(const char* name) {
  const Json* const json = Any(name);
  if (json == nullptr) return std::nullopt;
  const std::optional<int64_t> value = Whole(*json);
  if (!value) Expected(name, "a whole number", *json);
  return value;
}

std::optional<uint32_t> BodyFields::Count(const char* name) {
  const Json* const json = Any(name);
  if (json == nullptr) return std::nullopt;
  const std::optional<int64_t> value = Whole(*json);
  if (value && *value >= 0 && *value <= std::numeric_limits<uint32_t>::max()) {
    return static_cast<uint32_t>(*value);
  }
  Expected(name, "a whole number from 0 to 4294967295", *json);
  return std::nullopt;
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
    const std::optional<int64_t> id = Whole(entry);
    if (!id || *id < 0 || *id > std::numeric_limits<uint32_t>::max()) {
      Expected(absl::StrCat(name, "[", ids.size(), "]"), "a token id", entry);
      return {};
    }
    ids.push_back(static_cast<uint32_t>(*id));
  }
  return ids;
}

void BodyFields::Refuse(const char* name, const char* expected,
                        const std::function<bool(const Json&)>& accepted) {
  const Json* const json = Any(name);
  if (json == nullptr || (accepted && accepted(*json))) return;
  Fail(Unsupported(Path(name), expected));
}

absl::Status BodyFields::Finish() {
  if (!status_.ok()) return status_;
  for (const auto& entry : object_.items()) {
    if (read_.contains(entry.key())) continue;
    const std::string name = IsName(entry.key()) ? entry.key() : Quoted(entry.key());
    // The name is the caller's text, which the log must not get.
    return WithLogText(Unsupported(absl::StrCat(prefix_, name), "a field that docs/http.md lists"),
                       "a field that this server does not know");
  }
  return absl::OkStatus();
}

}  // namespace ovq
