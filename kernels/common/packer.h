// Packer lays out several arrays in one run of memory, so that one copy moves them all.
#pragma once

#include <cstddef>

namespace ovq::kernels {

// Arrays one after another, each 16-byte aligned.
class Packer {
 public:
  // Reserves n elements of T; returns the byte offset of the first.
  template <class T>
  size_t Add(size_t n) {
    const size_t at = bytes_;
    bytes_ += (n * sizeof(T) + 15) / 16 * 16;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace ovq::kernels
