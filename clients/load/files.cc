#include "clients/load/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ovq::load {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

absl::Status LastError(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return LastError(path);
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, n);
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected at most ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) return LastError(path);
  return text;
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view text) {
  // What is no file (a pipe, /dev/stdout) cannot be renamed onto.
  const std::string part = path.rfind("/dev/", 0) == 0 ? path : absl::StrCat(path, ".part");
  File file(std::fopen(part.c_str(), "wb"));
  if (file == nullptr) return LastError(part);
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (!written || std::fclose(file.release()) != 0) return LastError(part);
  if (part != path && std::rename(part.c_str(), path.c_str()) != 0) return LastError(path);
  return absl::OkStatus();
}

}  // namespace ovq::load
