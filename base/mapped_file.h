// A file mapped read-only, which may be cut short, or fail to be read, while it is mapped.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ovq {

// The system sends SIGBUS to whoever reads a mapped page that the file no longer has, or that the
// disk does not give. From the first MappedFile on, such pages of one read as zeros instead, and
// CheckUnchanged says so; any other SIGBUS does what it did before. Reading files into memory of
// their own would do without the signal, but would take that much memory more while a model loads.
class MappedFile {
 public:
  // Never waits for a writer. NotFound; DataLoss for what is no regular file or cannot be mapped.
  // Errors name the file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();

  std::byte* data() const;  // read-only
  size_t size() const;
  // To be asked when what was wanted of the file has been read: DataLoss if some of it may not be
  // what the file had when it was opened.
  absl::Status CheckUnchanged() const;

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;  // null: of no file, without bytes
};

}  // namespace ovq
