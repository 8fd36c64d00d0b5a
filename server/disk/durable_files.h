// Writes files so that they are durable (synced to the disk) before their callers go on.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::disk {

// An open file, closed by the destructor.
class OpenFile {
 public:
  // flags as for open(2). A file that is created is its owner's alone. Errors name the path.
  static absl::StatusOr<OpenFile> Open(const std::string& path, int flags);
  explicit OpenFile(int fd = -1) : fd_(fd) {}  // -1: none
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OpenFile();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Writes a file that appears under its name only once it is complete and synced; SyncFolder makes
// the name durable.
absl::Status WriteFileAtomically(const std::string& path,
                                 const std::vector<std::string_view>& parts);
// Appends to an existing file, all of the bytes or none. Returns the file, for fdatasync.
absl::StatusOr<OpenFile> AppendToFile(const std::string& path, std::string_view bytes);
absl::Status SyncFolder(const std::string& path);
absl::Status MakeFolder(const std::string& path);                         // OK if it exists
absl::Status RenameFile(const std::string& from, const std::string& to);  // replaces `to`
absl::Status RemoveFile(const std::string& path);  // OK if the file does not exist
absl::StatusOr<std::vector<std::string>> ListFileNames(const std::string& path);  // sorted

}  // namespace ovq::disk
