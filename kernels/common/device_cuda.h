// What DeviceContext and Buffer ask of CUDA, without CUDA's types. Defined in
// kernels/common/cuda/cuda_device.cu; a build without CUDA never refers to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/device.h"

namespace ovq::cuda {

absl::StatusOr<CudaDevice*> OpenDevice();  // FailedPrecondition: no usable GPU, and why
void CloseDevice(CudaDevice* device);
void BindThread(const CudaDevice& device);

void* AllocateBytes(size_t bytes);  // null if there is not enough
void FreeBytes(void* data);

void Upload(CudaDevice& device, void* to, const void* host, size_t bytes);
void CopyToHost(CudaDevice& device, void* host, const void* from, size_t bytes);
void Synchronize(CudaDevice& device);
std::byte* Staging(CudaDevice& device, size_t bytes, Staged kind);
std::byte* SendStaging(CudaDevice& device, size_t bytes, Staged kind);
void Captured(CudaDevice& device, const std::vector<int64_t>& key, const std::function<void()>& fn);

}  // namespace ovq::cuda
