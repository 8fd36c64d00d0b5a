// OutOfDeviceMemory and CatchOutOfMemory: how a GPU without enough memory for a model or a batch
// becomes a status. (Where the host has none, the process ends: base/out_of_memory.h.)
#pragma once

#include <cstddef>
#include <functional>
#include <new>

#include "absl/status/status.h"

namespace ovq::kernels {

// Thrown by Buffer, ScratchArena and DeviceContext::Staging on CUDA; only CatchOutOfMemory catches
// it. It is an exception because scratch memory is allocated deep inside kernel launches, which
// have no other way to fail.
class OutOfDeviceMemory : public std::bad_alloc {
 public:
  OutOfDeviceMemory(const char* whose, size_t bytes);  // "host"
  OutOfDeviceMemory(const char* whose, size_t bytes, size_t free_bytes, size_t total_bytes);
  const char* what() const noexcept override { return text_; }

 private:
  char text_[160];
};

// Runs fn. ResourceExhausted, with the bytes wanted and free, if the GPU ran out of memory. The
// memory that fn allocated is then free again, but kernels that it launched before still run, so
// the states they write are no longer usable.
absl::Status CatchOutOfMemory(const std::function<void()>& fn);

}  // namespace ovq::kernels
