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

// Parses a list under the same rules; objects in it keep the order of their keys.
absl::StatusOr<nlohmann::ordered_json> ParseJsonList(std::string_view text,
                                                     const std::string& what);

}  // namespace ovq
