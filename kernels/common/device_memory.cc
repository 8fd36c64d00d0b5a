#include "kernels/common/device_memory.h"

#include <cstdio>

namespace ovq::kernels {

OutOfDeviceMemory::OutOfDeviceMemory(const char* whose, size_t bytes) {
  std::snprintf(text_, sizeof(text_), "memory of the %s: %zu bytes needed at once", whose, bytes);
}

OutOfDeviceMemory::OutOfDeviceMemory(const char* whose, size_t bytes, size_t free_bytes,
                                     size_t total_bytes) {
  std::snprintf(text_, sizeof(text_),
                "memory of the %s: %zu bytes needed at once, %zu of %zu bytes are free", whose,
                bytes, free_bytes, total_bytes);
}

absl::Status CatchOutOfMemory(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const OutOfDeviceMemory& error) {
    return absl::ResourceExhaustedError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace ovq::kernels
