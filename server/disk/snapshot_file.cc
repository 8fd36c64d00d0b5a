#include "server/disk/snapshot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::disk {

absl::StatusOr<std::unique_ptr<SnapshotFile>> SnapshotFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(OpenFile file, OpenFile::Open(path, O_RDONLY | O_NONBLOCK));
  struct stat found = {};
  if (fstat(file.fd(), &found) != 0) return LastError(path);
  if (!S_ISREG(found.st_mode)) {
    return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  return std::unique_ptr<SnapshotFile>(
      new SnapshotFile(path, std::move(file), static_cast<uint64_t>(found.st_size)));
}

absl::Status SnapshotFile::Read(std::span<char> into) {
  while (!into.empty()) {
    const ssize_t n = read(file_.fd(), into.data(), into.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return LastError(path_);
    if (n == 0) return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", read_));
    read_ += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace ovq::disk
