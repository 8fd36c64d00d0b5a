// The CUDA functions behind DeviceContext, Buffer and StateMemory, declared without CUDA's types.
// Defined in kernels/common/cuda/cuda_device.cu and state_memory.cu. A build without CUDA links
// none of them: their calls follow a constant false, `kWithCuda &&`, and compilers leave them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/device_types.h"

namespace ovq::kernels {
class DeviceContext;
struct StateExtent;
}  // namespace ovq::kernels

namespace ovq::kernels::cuda {

absl::StatusOr<CudaDevice*> OpenDevice();  // FailedPrecondition: no usable GPU, and why
void CloseDevice(CudaDevice* device);
void BindThread(const CudaDevice& device);
GpuInfo Describe(const CudaDevice& device);  // any thread

void* AllocateBytes(size_t bytes);  // throws OutOfDeviceMemory
void FreeBytes(void* data);

void Upload(CudaDevice& device, void* to, const void* host, size_t bytes);
void CopyToHost(CudaDevice& device, void* host, const void* from, size_t bytes);
void Synchronize(CudaDevice& device);
std::byte* Staging(CudaDevice& device, size_t bytes, Staged kind);
std::byte* SendStaging(CudaDevice& device, size_t bytes, Staged kind);
void RunCaptured(CudaDevice& device, const std::vector<int64_t>& key,
                 const std::function<void()>& fn);
void CopyOnDevice(CudaDevice& device, void* to, const void* from, size_t bytes);

// StateMemory's functions, called on the device's thread and ordered by its stream.
size_t StatePageBytes(CudaDevice& device);
StatePages* OpenStatePages(CudaDevice& device);
void CloseStatePages(StatePages* pages);
std::byte* ReserveRange(StatePages& pages, size_t bytes);
bool CommitPages(StatePages& pages, std::byte* base, size_t offset, size_t bytes);
void ReleaseRange(StatePages& pages, std::byte* base, size_t bytes);
void PackExtents(DeviceContext& context, const std::byte* base,
                 std::span<const StateExtent> extents, std::byte* packed);
void UnpackExtents(DeviceContext& context, std::byte* base, std::span<const StateExtent> extents,
                   const std::byte* packed);

}  // namespace ovq::kernels::cuda
