// Files of JSON, read without exceptions and more strictly than the library does by itself.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ovq {

// The whole regular file. NotFound, or DataLoss if it is larger than max_bytes or no regular file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

// An object without duplicate keys, at most 32 levels deep. `what` begins every message. DataLoss.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& what);

// A name from a file as it may stand in a message: quoted, escaped, at most 120 characters.
std::string Quoted(std::string_view name);

}  // namespace ovq
