// JSON parsing without exceptions, and stricter than the library's own.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

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

}  // namespace ovq
