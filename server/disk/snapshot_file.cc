#include "server/disk/snapshot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "server/disk/durable_files.h"

namespace ovq::disk {

absl::StatusOr<std::unique_ptr<SnapshotFile>> SnapshotFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return LastError(path);
  struct stat found = {};
  absl::Status status = fstat(fd, &found) == 0 ? absl::OkStatus() : LastError(path);
  if (status.ok() && !S_ISREG(found.st_mode)) {
    status = absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  if (!status.ok()) {
    close(fd);
    return status;
  }
  return std::unique_ptr<SnapshotFile>(
      new SnapshotFile(path, fd, static_cast<uint64_t>(found.st_size)));
}

SnapshotFile::~SnapshotFile() { close(fd_); }

absl::Status SnapshotFile::Read(std::span<char> into) {
  while (!into.empty()) {
    const ssize_t n = read(fd_, into.data(), into.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return LastError(path_);
    if (n == 0) return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", read_));
    read_ += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace ovq::disk
