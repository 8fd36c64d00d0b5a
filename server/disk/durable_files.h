// Files that must be on the disk before anybody is told so.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq {

// errno, of a call about this path.
absl::Status LastError(const std::string& path);

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path);
// Appears under its name only once it is whole and on the disk; SyncFolder makes the name last.
absl::Status WriteFileAtomically(const std::string& path,
                                 const std::vector<std::string_view>& parts);
// Of a file that is there, all of it or nothing. The descriptor, for fdatasync; the caller closes
// it.
absl::StatusOr<int> AppendToFile(const std::string& path, std::string_view bytes);
absl::Status SyncFolder(const std::string& path);
absl::Status RemoveFile(const std::string& path);  // OK for one that is not there
absl::StatusOr<std::vector<std::string>> ListFileNames(const std::string& path);  // sorted

}  // namespace ovq
