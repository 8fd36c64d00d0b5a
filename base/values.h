// Values as people write them: flags, configuration files.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ovq {

// InvalidArgument: "expected `what`, got '`got`'".
absl::Status Expected(std::string_view what, std::string_view got);

// "512M", "8G", "1.5GiB", "4096": K, M, G, T are powers of 1024; at least one byte.
absl::StatusOr<size_t> ParseSize(std::string_view text);
// "250ms", "30s", "5m", "1h", "1h30m".
absl::StatusOr<absl::Duration> ParseDuration(std::string_view text);

}  // namespace ovq
