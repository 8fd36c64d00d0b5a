// Allocating and copying.
#include <cstring>

#include "tests/simt/memory.h"
#include "tests/simt/report.h"
#include "tests/simt/runtime_api.h"
#include "tests/simt/stream.h"

namespace ovq::simt {
namespace {

cudaError_t Allocate(void** p, size_t bytes, MemoryKind kind) {
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  *p = MemoryRegistry::Get().Allocate(bytes, kind);
  return *p == nullptr ? Failed(cudaErrorMemoryAllocation) : cudaSuccess;
}

// Waits for the device, as CUDA does where it frees memory.
cudaError_t Free(void* p, MemoryKind kind) {
  if (const cudaError_t error = DoAllSubmitted(); error != cudaSuccess) return error;
  if (p == nullptr || MemoryRegistry::Get().Free(p, kind)) return cudaSuccess;
  Report("cudaFree of what was not allocated, or with the other function");
  return Failed(cudaErrorInvalidValue);
}

cudaError_t CheckCopy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const MemoryRegistry& registry = MemoryRegistry::Get();
  for (const void* p : {to, from}) {
    const std::string wrong = registry.CheckRange(p, bytes);
    if (wrong.empty()) continue;
    Report("cudaMemcpy: " + wrong);
    return Failed(cudaErrorInvalidValue);
  }
  const bool to_device = registry.Classify(to) == MemoryKind::kDevice;
  const bool from_device = registry.Classify(from) == MemoryKind::kDevice;
  const bool right =
      kind == cudaMemcpyDefault ||
      (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
       from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (right) return cudaSuccess;
  Report(std::string("cudaMemcpy: the kind does not fit a copy from ") +
         (from_device ? "the device" : "the host") + " to " +
         (to_device ? "the device" : "the host"));
  return Failed(cudaErrorInvalidMemcpyDirection);
}

cudaError_t CheckSet(const void* to, size_t bytes) {
  const MemoryRegistry& registry = MemoryRegistry::Get();
  std::string wrong = registry.CheckRange(to, bytes);
  if (registry.Classify(to) != MemoryKind::kDevice) wrong = "not memory of the device";
  if (wrong.empty()) return cudaSuccess;
  Report("cudaMemset: " + wrong);
  return Failed(cudaErrorInvalidValue);
}

}  // namespace
}  // namespace ovq::simt

using namespace ovq::simt;

cudaError_t cudaMalloc(void** p, size_t bytes) {
  const cudaError_t error = RefuseWhileCapturing();
  return error == cudaSuccess ? Allocate(p, bytes, MemoryKind::kDevice) : error;
}

cudaError_t cudaFree(void* p) {
  const cudaError_t error = RefuseWhileCapturing();
  return error == cudaSuccess ? Free(p, MemoryKind::kDevice) : error;
}

// Not recorded in graphs: the address would have to be known before.
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }

cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  const cudaError_t error = RefuseWhileCapturing();
  return error == cudaSuccess ? Allocate(p, bytes, MemoryKind::kPinned) : error;
}

cudaError_t cudaFreeHost(void* p) {
  const cudaError_t error = RefuseWhileCapturing();
  return error == cudaSuccess ? Free(p, MemoryKind::kPinned) : error;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaError_t error = RefuseWhileCapturing();
  if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? DoAllSubmitted() : error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckCopy(to, from, bytes, kind); error != cudaSuccess) {
    return error;
  }
  const cudaError_t error = Submit(stream, [=] {
    std::memmove(to, from, bytes);
    return cudaSuccess;
  });
  // CUDA copies memory that is not page-locked before it returns.
  const MemoryRegistry& registry = MemoryRegistry::Get();
  const bool waits =
      registry.Classify(to) == MemoryKind::kHost || registry.Classify(from) == MemoryKind::kHost;
  return error == cudaSuccess && waits ? DoAllSubmitted() : error;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  cudaError_t error = RefuseWhileCapturing();
  if (error == cudaSuccess) error = cudaMemsetAsync(to, value, bytes, nullptr);
  return error == cudaSuccess ? DoAllSubmitted() : error;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckSet(to, bytes); error != cudaSuccess) return error;
  return Submit(stream, [=] {
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}
