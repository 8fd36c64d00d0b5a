// Places for several arrays in one run of memory, which then takes one copy.
#pragma once

#include <cstddef>

namespace ovq {

// One array after another, each 16-byte aligned.
class Packer {
 public:
  // Where n elements of T begin.
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

}  // namespace ovq
