// Writes files so that they are durable (synced to the disk) before their callers go on.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::disk {

// Returns errno of the last call as a status that names the path.
absl::Status LastError(const std::string& path);

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path);
// Writes a file that appears under its name only once it is complete and synced; SyncFolder makes
// the name durable.
absl::Status WriteFileAtomically(const std::string& path,
                                 const std::vector<std::string_view>& parts);
// Appends to an existing file, all of the bytes or none. Returns the descriptor, for fdatasync; the
// caller closes it.
absl::StatusOr<int> AppendToFile(const std::string& path, std::string_view bytes);
absl::Status SyncFolder(const std::string& path);
absl::Status RemoveFile(const std::string& path);  // OK if the file does not exist
absl::StatusOr<std::vector<std::string>> ListFileNames(const std::string& path);  // sorted

}  // namespace ovq::disk
