#include "server/disk/durable_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ovq::disk {

absl::Status LastError(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return LastError(path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path,
                                 const std::vector<std::string_view>& parts) {
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return LastError(part);
  absl::Status status;
  for (const std::string_view bytes : parts) {
    if (status.ok()) status = WriteAll(fd, bytes, part);
  }
  if (status.ok() && fdatasync(fd) != 0) status = LastError(part);
  close(fd);
  if (status.ok() && rename(part.c_str(), path.c_str()) != 0) status = LastError(path);
  if (!status.ok()) unlink(part.c_str());
  return status;
}

absl::StatusOr<int> AppendToFile(const std::string& path, std::string_view bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return LastError(path);
  struct stat before = {};
  absl::Status status = fstat(fd, &before) == 0 ? absl::OkStatus() : LastError(path);
  if (status.ok()) status = WriteAll(fd, bytes, path);
  if (status.ok()) return fd;
  (void)!ftruncate(fd, before.st_size);  // if this fails, the torn end is recognized by its reader
  close(fd);
  return status;
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return LastError(path);
  const absl::Status status = fsync(fd) == 0 ? absl::OkStatus() : LastError(path);
  close(fd);
  return status;
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return LastError(path);
}

absl::StatusOr<std::vector<std::string>> ListFileNames(const std::string& path) {
  DIR* const dir = opendir(path.c_str());
  if (dir == nullptr) return LastError(path);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  std::ranges::sort(names);
  return names;
}

}  // namespace ovq::disk
