#include "server/access/secret_file.h"

#include <sys/stat.h>

#include "absl/strings/str_format.h"
#include "base/files.h"

namespace ovq::server {

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t max_bytes,
                                           std::string_view harm) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return LastError(path);
  if ((info.st_mode & (S_IWGRP | S_IRWXO)) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its mode is %04o, expected 0600, or 0640 for a group: whoever reads %s", path,
        info.st_mode & 07777, std::string(harm)));
  }
  return ReadFile(path, max_bytes);
}

}  // namespace ovq::server
