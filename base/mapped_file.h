// MappedFile: a read-only mapping that survives truncation and read errors of its file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq {

// Reading a mapped page that the file no longer has, or that the disk cannot read, raises SIGBUS.
// Once the first MappedFile exists, such pages of a MappedFile read as zeros instead, and
// CheckUnchanged reports it; any other SIGBUS is handled as before. Reading files into memory of
// its own would need no signal handler, but that much more memory while a model loads.
class MappedFile {
 public:
  // Never waits for a writer. NotFound; DataLoss if it is not a regular file or cannot be mapped.
  // Errors name the file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  std::byte* data() const;  // read-only
  size_t size() const;
  // Call this after reading the data: DataLoss if some of it may differ from the file when it was
  // opened.
  absl::Status CheckUnchanged() const;

 private:
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;  // null: no file, no bytes
};

}  // namespace ovq
