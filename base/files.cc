#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

}  // namespace

absl::Status LastError(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

absl::StatusOr<std::string> ReadStream(std::FILE* file, const std::string& name, size_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), file)) {
    text.append(buffer, n);
    if (text.size() > max_bytes) {
      return absl::DataLossError(absl::StrCat(name, ": larger than ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(file) != 0) return LastError(name);
  return text;
}

absl::StatusOr<std::string> ReadFileOrPipe(const std::string& path, size_t max_bytes) {
  const File file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (file == nullptr) return LastError(path);
  return ReadStream(file.get(), path, max_bytes);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  return ReadFileOrPipe(path, max_bytes);
}

absl::Status FlushStdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  if (errno != 0) return LastError("stdout");
  return absl::DataLossError("stdout: some of the output could not be written");
}

namespace {

// The file that is written first. A device or pipe (/dev/stdout) cannot be replaced by a rename;
// /dev/shm has plain files.
std::string PartialPath(const std::string& path) {
  const bool in_place = path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
  return in_place ? path : path + ".part";
}

}  // namespace

absl::Status WriteFile(const std::string& path, std::string_view text) {
  const std::string part = PartialPath(path);
  File file(std::fopen(part.c_str(), "wbe"), std::fclose);
  if (file == nullptr) return LastError(part);
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!written || std::fclose(file.release()) != 0) return LastError(part);
  if (part != path && std::rename(part.c_str(), path.c_str()) != 0) return LastError(path);
  return absl::OkStatus();
}

absl::Status CheckWritable(const std::string& path) {
  const std::string part = PartialPath(path);
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    errno = EISDIR;
    return LastError(path);
  }
  const bool was_there = access(part.c_str(), F_OK) == 0;
  const File file(std::fopen(part.c_str(), "abe"), std::fclose);
  if (file == nullptr) return LastError(part);
  if (!was_there) (void)unlink(part.c_str());
  return absl::OkStatus();
}

void HoldStandardFiles() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open returns the lowest free number, which is fd.
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDONLY);
  }
}

}  // namespace ovq
