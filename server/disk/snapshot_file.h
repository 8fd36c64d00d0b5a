// Defines SnapshotFile, a session's snapshot as a file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/disk/durable_files.h"
#include "server/store/session_store.h"

namespace ovq::disk {

// An open snapshot; its content stays the same even if another snapshot replaces the file.
class SnapshotFile final : public store::SnapshotReader {
 public:
  // NotFound if there is no such file; errors name the path.
  static absl::StatusOr<std::unique_ptr<SnapshotFile>> Open(const std::string& path);

  uint64_t bytes() const override { return bytes_; }
  uint64_t left() const override { return bytes_ - read_; }
  absl::Status Read(std::span<char> into) override;

 private:
  SnapshotFile(std::string path, OpenFile file, uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

  const std::string path_;
  const OpenFile file_;
  const uint64_t bytes_;
  uint64_t read_ = 0;
};

}  // namespace ovq::disk
