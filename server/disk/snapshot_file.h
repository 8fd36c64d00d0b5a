// Defines SnapshotFile, which reads a session's snapshot part by part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/disk/durable_files.h"

namespace ovq::disk {

// An open snapshot; its content stays the same even if another snapshot replaces the file.
class SnapshotFile {
 public:
  // NotFound if there is no such file; errors name the path.
  static absl::StatusOr<std::unique_ptr<SnapshotFile>> Open(const std::string& path);

  uint64_t bytes() const { return bytes_; }
  uint64_t left() const { return bytes_ - read_; }
  // Reads the next bytes. DataLoss if the file has fewer.
  absl::Status Read(std::span<char> into);

 private:
  SnapshotFile(std::string path, OpenFile file, uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

  const std::string path_;
  const OpenFile file_;
  const uint64_t bytes_;
  uint64_t read_ = 0;
};

}  // namespace ovq::disk
