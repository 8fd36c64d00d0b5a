// Reading files whole.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace ovq {

// The whole regular file. NotFound, or DataLoss if it is larger than max_bytes or no regular file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace ovq
