// Reads files of secrets.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ovq::server {

// InvalidArgument for a file that others than its owner and its group may read, or others than its
// owner may write; otherwise the errors of ReadFile. harm: what whoever reads the file can do, for
// the error. Every error names the file.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t max_bytes,
                                           std::string_view harm);

}  // namespace ovq::server
