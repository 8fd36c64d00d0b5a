// JSON parsing without exceptions, and stricter than the library's own; JSON pointers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/text.h"

namespace ovq {

// Parses an object without duplicate keys, at most 32 levels deep. `what` begins every message.
// DataLoss.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& what);

// Parse an object and a list under the same rules; objects keep the order of their keys. Such
// objects are searched key by key, so their keys are limited: one object may have 16,000, and 100
// objects 1,600 each.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedObject(std::string_view text,
                                                          const std::string& what);
absl::StatusOr<nlohmann::ordered_json> ParseJsonList(std::string_view text,
                                                     const std::string& what);

// A key as a part of a JSON pointer (RFC 6901): "/" is "~1" and "~" is "~0".
inline std::string PointerToken(std::string_view key) {
  return absl::StrReplaceAll(AbslView(key), {{"~", "~0"}, {"/", "~1"}});
}

// The value at a JSON pointer that begins with "/"; null if there is none.
template <typename Json>
const Json* FindAt(const Json& document, std::string_view pointer) {
  const Json* at = &document;
  for (const std::string& token :
       std::vector<std::string>(absl::StrSplit(AbslView(pointer.substr(1)), '/'))) {
    const std::string key = absl::StrReplaceAll(token, {{"~1", "/"}, {"~0", "~"}});
    size_t index = 0;
    if (at->is_object() && at->contains(key)) {
      at = &at->at(key);
    } else if (at->is_array() && absl::SimpleAtoi(key, &index) && index < at->size() &&
               absl::StrCat(index) == key) {
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}

}  // namespace ovq
