// What follows where a GPU has no memory left for what a model or a batch needs. (Where the host
// has none, the process ends: base/out_of_memory.h.)
#pragma once

#include <cstddef>
#include <functional>
#include <new>

#include "absl/status/status.h"

namespace ovq {

// Thrown by Buffer, ScratchArena and DeviceContext::Staging on CUDA, and caught by CatchOutOfMemory
// alone. An exception, because scratch memory is taken deep inside of kernels' launches, where
// nothing else can fail.
class OutOfDeviceMemory : public std::bad_alloc {
 public:
  OutOfDeviceMemory(const char* whose, size_t bytes);  // "host"
  OutOfDeviceMemory(const char* whose, size_t bytes, size_t free_bytes, size_t total_bytes);
  const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

// Runs fn. ResourceExhausted, with the bytes that were wanted and are free, if the GPU had no
// memory for all of it: what fn had allocated is free again, but kernels that it launched before
// run, so states that they write to are of no more use.
absl::Status CatchOutOfMemory(const std::function<void()>& fn);

}  // namespace ovq
