// Parsing of values as people write them in flags and configuration files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq {

// InvalidArgument: "expected `what`, got '`got`'".
absl::Status Expected(std::string_view what, std::string_view got);

// Parses "512M", "8G", "1.5GiB", "4096": K, M, G, T are powers of 1024; at least one byte.
absl::StatusOr<size_t> ParseSize(std::string_view text);
std::string SizeText(size_t bytes);  // "512M", "1536K", "4097": the largest unit that divides it

}  // namespace ovq
