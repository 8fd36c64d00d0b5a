// Whole files in and out, with the file's name in every error.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ovq::load {

// The whole file, if it has at most max_bytes.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes);
// Creates or replaces the file; it appears under its name only once it is whole.
absl::Status WriteWholeFile(const std::string& path, absl::string_view text);

}  // namespace ovq::load
