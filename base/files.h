// Reads and writes whole files. Every error names the file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq {

// The errno of the last call as a status that names the path.
absl::Status LastError(const std::string& path);

// Opens /dev/null in place of each standard stream that is closed. Otherwise the next file or
// connection would get its number and the output meant for the stream. Call it before any other
// file is opened.
void HoldStandardFiles();

// Reads a regular file and never waits for a writer. Errors for anything else (a folder, a pipe),
// for a missing file (NotFound) and for more than max_bytes (DataLoss).
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);
// Also reads pipes and devices, to their end.
absl::StatusOr<std::string> ReadFileOrPipe(const std::string& path, size_t max_bytes);
absl::StatusOr<std::string> ReadStream(std::FILE* file, const std::string& name, size_t max_bytes);

// Writes what stdout's buffer holds. An error if any output of the process was lost, also earlier.
absl::Status FlushStdout();

// Creates or replaces the file, which appears under its name only once it is complete.
absl::Status WriteFile(const std::string& path, std::string_view text);
// The error that WriteFile would have now. Leaves no file.
absl::Status CheckWritable(const std::string& path);

}  // namespace ovq
