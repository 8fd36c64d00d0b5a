#include "model/tokenizers/json_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {

using Json = nlohmann::json;

std::string JsonKindName(const Json& json) {
  if (json.is_string()) return Quoted(json.get_ref<const std::string&>());
  if (json.is_structured()) return absl::StrCat("an ", json.type_name());
  return json.dump();
}

JsonFields::JsonFields(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {
  if (!json.is_object()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(path_, ": expected an object, got ", JsonKindName(json)));
  }
}

std::string JsonFields::FieldPath(std::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", std::string(key));
}

void JsonFields::Fail(std::string_view key, std::string_view what) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(FieldPath(key), ": ", std::string(what)));
}

const Json* JsonFields::Find(std::string_view key) const {
  if (!json_->is_object()) return nullptr;
  const auto it = json_->find(std::string(key));
  return it == json_->end() || it->is_null() ? nullptr : &*it;
}

std::string JsonFields::String(std::string_view key) {
  if (!Has(key)) Fail(key, "expected a string, but it is missing");
  return StringOr(key, "");
}

std::string JsonFields::StringOr(std::string_view key, std::string_view fallback) {
  const Json* json = Find(key);
  if (json == nullptr) return std::string(fallback);
  if (json->is_string()) return json->get<std::string>();
  Fail(key, absl::StrCat("expected a string, got ", JsonKindName(*json)));
  return std::string(fallback);
}

bool JsonFields::BoolOr(std::string_view key, bool fallback) {
  const Json* json = Find(key);
  if (json == nullptr) return fallback;
  if (json->is_boolean()) return json->get<bool>();
  Fail(key, absl::StrCat("expected true or false, got ", JsonKindName(*json)));
  return fallback;
}

int64_t JsonFields::Int(std::string_view key, int64_t low, int64_t high) {
  if (!Has(key)) Fail(key, "expected an integer, but it is missing");
  return IntOr(key, low, low, high);
}

int64_t JsonFields::IntOr(std::string_view key, int64_t fallback, int64_t low, int64_t high) {
  const Json* json = Find(key);
  if (json == nullptr) return fallback;
  const bool in_int64 = json->is_number_integer() &&
                        (!json->is_number_unsigned() || json->get<uint64_t>() <= INT64_MAX);
  if (in_int64 && json->get<int64_t>() >= low && json->get<int64_t>() <= high) {
    return json->get<int64_t>();
  }
  Fail(key,
       absl::StrCat("expected an integer in [", low, ", ", high, "], got ", JsonKindName(*json)));
  return fallback;
}

size_t JsonFields::Choice(std::string_view key, std::span<const std::string_view> names) {
  const std::string name = String(key);
  const auto it = std::ranges::find(names, std::string_view(name));
  if (it != names.end()) return it - names.begin();
  std::vector<std::string> known(names.begin(), names.end());
  Fail(key, absl::StrCat("unknown value ", Quoted(name), "; known: ", absl::StrJoin(known, ", ")));
  return 0;
}

JsonFields JsonFields::Child(std::string_view key) {
  static const Json* const missing = new Json;
  const Json* json = Find(key);
  JsonFields child(json ? *json : *missing, FieldPath(key));
  if (status_.ok() && json == nullptr) Fail(key, "expected an object, but it is missing");
  if (status_.ok()) status_ = child.status();
  return child;
}

std::vector<JsonFields> JsonFields::Children(std::string_view key) {
  std::vector<JsonFields> children;
  const Json* json = Find(key);
  if (json == nullptr || !json->is_array()) {
    Fail(key, absl::StrCat("expected a list, ",
                           json ? absl::StrCat("got ", JsonKindName(*json)) : "but it is missing"));
    return children;
  }
  for (size_t i = 0; i < json->size(); ++i) {
    children.emplace_back((*json)[i], absl::StrCat(FieldPath(key), "[", i, "]"));
    if (status_.ok()) status_ = children.back().status();
  }
  return children;
}

std::vector<int64_t> JsonFields::Ints(std::string_view key, int64_t low, int64_t high) {
  std::vector<int64_t> ints;
  const Json* json = Find(key);
  const std::string expected =
      absl::StrCat("expected a list of integers in [", low, ", ", high, "]");
  if (json == nullptr || !json->is_array()) {
    Fail(key, expected);
    return ints;
  }
  for (const Json& entry : *json) {
    const bool fits =
        entry.is_number_integer() && entry.get<int64_t>() >= low && entry.get<int64_t>() <= high;
    if (!fits) Fail(key, absl::StrCat(expected, ", got ", JsonKindName(entry)));
    if (fits) ints.push_back(entry.get<int64_t>());
  }
  return ints;
}

namespace {

absl::Status ReadOneStage(JsonFields fields, std::string_view children,
                          std::span<const std::string_view> types, bool is_last,
                          const ReadStage& read) {
  const size_t type = fields.Choice("type", types);
  if (!fields.status().ok()) return fields.status();
  if (type != 0) {
    RETURN_IF_ERROR(read(type, fields, is_last));
    return fields.status();
  }
  const std::vector<JsonFields> stages = fields.Children(children);
  if (!fields.status().ok()) return fields.status();
  for (const JsonFields& stage : stages) {
    RETURN_IF_ERROR(
        ReadOneStage(stage, children, types, is_last && &stage == &stages.back(), read));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadStages(JsonFields& file, std::string_view key, std::string_view children,
                        std::span<const std::string_view> types, const ReadStage& read) {
  if (!file.Has(key)) return absl::OkStatus();
  const JsonFields fields = file.Child(key);
  if (!file.status().ok()) return file.status();
  constexpr int kMostStages = 256;
  int n_stages = 0;
  const ReadStage counted = [&](size_t type, JsonFields& stage, bool is_last) -> absl::Status {
    if (++n_stages <= kMostStages) return read(type, stage, is_last);
    return absl::InvalidArgumentError(
        absl::StrCat(file.FieldPath(key), ": expected at most ", kMostStages, " stages"));
  };
  return ReadOneStage(fields, children, types, /*is_last=*/true, counted);
}

}  // namespace ovq::model
