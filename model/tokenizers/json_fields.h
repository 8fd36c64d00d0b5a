// JsonFields reads the fields of a JSON object. Errors have the field's path:
// pre_tokenizer.pretokenizers[1].type.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ovq::model {

// The first error stays; after it, reads return the fallback. A null field counts as absent; unread
// fields are ignored.
class JsonFields {
 public:
  // `json` outlives this and all children.
  JsonFields(const nlohmann::json& json, std::string path);

  const absl::Status& status() const { return status_; }
  // Sets the error "path.key: what" unless there is one.
  void Fail(std::string_view key, std::string_view what);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  std::string String(std::string_view key);  // absence is an error
  std::string StringOr(std::string_view key, std::string_view fallback);
  bool BoolOr(std::string_view key, bool fallback);
  int64_t Int(std::string_view key, int64_t low, int64_t high);  // absence is an error
  int64_t IntOr(std::string_view key, int64_t fallback, int64_t low, int64_t high);
  // The index of the field's value in `names`.
  size_t Choice(std::string_view key, std::span<const std::string_view> names);
  JsonFields Child(std::string_view key);
  std::vector<JsonFields> Children(std::string_view key);  // one for each object of a list
  std::vector<int64_t> Ints(std::string_view key, int64_t low, int64_t high);
  const nlohmann::json* Find(std::string_view key) const;  // null if absent

  std::string FieldPath(std::string_view key) const;

 private:
  const nlohmann::json* json_;
  std::string path_;
  absl::Status status_;
};

// Reads the field `key` of the file, which may be absent: an object with a `type`, one of `types`,
// of which the first is Sequence; an object of that type has more such objects in its list
// `children`. Calls read(type, fields, is_last) for each of the others in their order: type is the
// index of the object's type, is_last whether no other follows. Returns the first error; more than
// 256 of the others are one.
using ReadStage = std::function<absl::Status(size_t type, JsonFields& fields, bool is_last)>;
absl::Status ReadStages(JsonFields& file, std::string_view key, std::string_view children,
                        std::span<const std::string_view> types, const ReadStage& read);

// "a number", "an object" etc., for messages.
std::string JsonKindName(const nlohmann::json& json);

}  // namespace ovq::model
