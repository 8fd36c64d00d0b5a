// A session's snapshot while it is read, part by part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace ovq {

// Stays what it was when it was opened, also if another takes its place meanwhile.
class SnapshotFile {
 public:
  // NotFound; errors name the path.
  static absl::StatusOr<std::unique_ptr<SnapshotFile>> Open(const std::string& path);
  ~SnapshotFile();
  SnapshotFile(const SnapshotFile&) = delete;
  SnapshotFile& operator=(const SnapshotFile&) = delete;

  uint64_t bytes() const { return bytes_; }
  uint64_t left() const { return bytes_ - read_; }
  // The next bytes. DataLoss if the file has fewer.
  absl::Status Read(std::span<char> into);

 private:
  SnapshotFile(std::string path, int fd, uint64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  const std::string path_;
  const int fd_;
  const uint64_t bytes_;
  uint64_t read_ = 0;
};

}  // namespace ovq
