#include "server/disk/durable_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/files.h"
#include "base/status_macros.h"

namespace ovq::disk {
namespace {

absl::Status WriteAll(const OpenFile& file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(file.fd(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return LastError(path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// The status of a call that returns 0, or -1 and sets errno.
absl::Status Result(int returned, const std::string& path) {
  return returned == 0 ? absl::OkStatus() : LastError(path);
}

}  // namespace

absl::StatusOr<OpenFile> OpenFile::Open(const std::string& path, int flags) {
  OpenFile file(open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (file.fd() < 0) return LastError(path);
  return file;
}

OpenFile::~OpenFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status WriteFileAtomically(const std::string& path,
                                 const std::vector<std::string_view>& parts) {
  const std::string part = path + ".part";
  ASSIGN_OR_RETURN(const OpenFile file, OpenFile::Open(part, O_WRONLY | O_CREAT | O_TRUNC));
  absl::Status status;
  for (const std::string_view bytes : parts) {
    if (status.ok()) status = WriteAll(file, bytes, part);
  }
  if (status.ok()) status = Result(fdatasync(file.fd()), part);
  if (status.ok()) status = Result(rename(part.c_str(), path.c_str()), path);
  if (!status.ok()) unlink(part.c_str());
  return status;
}

absl::StatusOr<OpenFile> AppendToFile(const std::string& path, std::string_view bytes) {
  ASSIGN_OR_RETURN(OpenFile file, OpenFile::Open(path, O_WRONLY | O_APPEND));
  struct stat before = {};
  RETURN_IF_ERROR(Result(fstat(file.fd(), &before), path));
  const absl::Status status = WriteAll(file, bytes, path);
  if (status.ok()) return file;
  // If this fails, the torn end is recognized by its reader.
  (void)!ftruncate(file.fd(), before.st_size);
  return status;
}

absl::Status SyncFolder(const std::string& path) {
  ASSIGN_OR_RETURN(const OpenFile folder, OpenFile::Open(path, O_RDONLY | O_DIRECTORY));
  return Result(fsync(folder.fd()), path);
}

absl::Status MakeFolder(const std::string& path) {
  return mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? absl::OkStatus() : LastError(path);
}

absl::Status RenameFile(const std::string& from, const std::string& to) {
  return Result(rename(from.c_str(), to.c_str()), to);
}

absl::Status RemoveFile(const std::string& path) {
  return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : LastError(path);
}

absl::StatusOr<std::vector<std::string>> ListFileNames(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) return absl::ErrnoToStatus(error.value(), path);
  std::ranges::sort(names);
  return names;
}

}  // namespace ovq::disk
