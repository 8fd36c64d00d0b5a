// JSON, read without exceptions and more strictly than the library does by itself.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ovq {

// An object without duplicate keys, at most 32 levels deep. `what` begins every message. DataLoss.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& what);

// A list, likewise; the objects in it keep their keys in order.
absl::StatusOr<nlohmann::ordered_json> ParseJsonList(std::string_view text,
                                                     const std::string& what);

}  // namespace ovq
