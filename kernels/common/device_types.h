// Device and the types that describe devices, for headers that must not include a device's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ovq::kernels {

// WITH_CUDA is defined for a build of the kernels that includes the .cu files.
#ifdef WITH_CUDA
inline constexpr bool kWithCuda = true;
#else
inline constexpr bool kWithCuda = false;
#endif

// kReference: the references that tests link (dispatch.h), on one thread and in the host's memory.
enum class Device : unsigned char { kReference, kCpu, kCuda };

// A GPU and its memory, as used by all processes together.
struct GpuInfo {
  std::string name;
  size_t total_bytes = 0;
  size_t free_bytes = 0;
};

struct CudaDevice;  // kernels/common/cuda/cuda_device.h
struct StatePages;  // kernels/common/cuda/state_memory.cu

// The use of staging memory: a batch's arrays, or a request to read its logits.
enum class Staged : uint8_t { kBatch, kReading };
inline constexpr int kStagedKinds = 2;

}  // namespace ovq::kernels
