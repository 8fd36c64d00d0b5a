// A file mapped read-only, of which a part may vanish while it is read.
#pragma once

#include <cstddef>
#include <utility>

namespace ovq {

// Whoever copies other weights over a file cuts it short first, and reading what is not there any
// more would end the process (SIGBUS). Here it gives zeros, and torn() is true from then on.
// Reading the file into memory instead would take its size a second time and a copy of it; this
// costs nothing until it happens.
class FileMap {
 public:
  FileMap() = default;
  // Of an open file, which may be closed then. Null data: errno says why not.
  FileMap(int fd, size_t bytes);
  ~FileMap();
  FileMap(FileMap&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        place_(other.place_) {}
  FileMap& operator=(FileMap&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(place_, other.place_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool torn() const;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t place_ = 0;  // among the maps that the signal's handler knows
};

}  // namespace ovq
