// Snapshots of sessions in parts, as stores have them whose values are of bounded size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/session_store.h"

namespace ovq::store {

// Passes on what `make` writes, in parts of part_bytes; the last one may be shorter. Errors: those
// of `make` and of `put`.
absl::Status CutIntoParts(const SessionStore::MakeSnapshot& make, size_t part_bytes,
                          const std::function<absl::Status(std::string part)>& put);

// Reads a snapshot part by part.
class PartsReader : public SnapshotReader {
 public:
  explicit PartsReader(uint64_t bytes) : bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }
  uint64_t left() const override { return bytes_ - read_; }
  absl::Status Read(std::span<char> into) override;

 protected:
  // Returns the next part, which is not empty.
  virtual absl::StatusOr<std::string> ReadPart() = 0;

 private:
  const uint64_t bytes_;
  std::string part_ = {};  // the last one that was read
  size_t at_ = 0;          // in it
  uint64_t read_ = 0;      // bytes
};

}  // namespace ovq::store
