#include "base/files.h"

#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ovq {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (error || status.type() != std::filesystem::file_type::regular) {
    return absl::DataLossError(absl::StrCat(path, ": not a regular file"));
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > max_bytes) {
    return absl::DataLossError(absl::StrCat(path, ": larger than ", max_bytes, " bytes"));
  }
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

}  // namespace ovq
