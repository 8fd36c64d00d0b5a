// Files whole, in and out, with their names in every error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq {

// Standard input, output and errors that are closed become files that end at once and take nothing:
// otherwise the next file or connection to be opened would have their number, and what is meant for
// them. Before any other file is opened.
void HoldStandardFiles();

// Never waits for a writer: what is no regular file (a folder, a pipe) is an error, as is a missing
// file (NotFound) or one of more than max_bytes (DataLoss).
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);
// Pipes and devices too, to their end.
absl::StatusOr<std::string> ReadFileOrPipe(const std::string& path, size_t max_bytes);
absl::StatusOr<std::string> ReadStream(std::FILE* file, const std::string& name, size_t max_bytes);

// Creates or replaces the file; it appears under its name only once it is whole.
absl::Status WriteFile(const std::string& path, std::string_view text);

}  // namespace ovq
