#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/common/device_memory.h"

namespace ovq::kernels::cuda {
namespace {

constexpr size_t kUploadHalfBytes = size_t{4} << 20;
constexpr size_t kMaxGraphs = 256;
constexpr int kMinMajor = 8;            // cp.async and bfloat16 matrix products
constexpr int kPtxWithEarlyStart = 90;  // the architecture from which ptx.cuh has griddepcontrol

absl::Status NoDevice(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("device 'cuda': ", why));
}

// Nothing launches it. Its attributes tell which of the compiled architectures this GPU runs.
__global__ void ProbedKernel() {}

bool IsOutOfMemory(cudaError_t error) {
  if (error != cudaErrorMemoryAllocation) return false;
  cudaGetLastError();  // so that the next launch does not report it
  return true;
}

void* AllocatePageLocked(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes);
  if (IsOutOfMemory(error)) {
    throw OutOfDeviceMemory(
        absl::StrCat("memory of the host, page-locked: ", bytes, " bytes needed at once"));
  }
  CheckCuda(error);
  return data;
}

// Frees the memory and leaves `staging` empty.
void FreeStaging(CudaStaging& staging) {
  if (staging.host != nullptr) CheckCuda(cudaFreeHost(staging.host));
  CheckCuda(cudaFree(staging.device));
  staging = {};
}

void DropGraphs(CudaDevice& device) {
  Synchronize(device);
  for (const auto& [key, exec] : device.graphs) {
    if (exec != nullptr) CheckCuda(cudaGraphExecDestroy(exec));
  }
  device.graphs.clear();
}

}  // namespace

void CheckCuda(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: CUDA: %s: %s\n", file, line, cudaGetErrorName(error),
               cudaGetErrorString(error));
  std::abort();
}

absl::StatusOr<CudaDevice*> OpenDevice() {
  int count = 0;
  if (cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return NoDevice(absl::StrCat("expected a GPU and its driver, found none (",
                                 cudaGetErrorString(error), ")"));
  }
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, 0); error != cudaSuccess) {
    return NoDevice(cudaGetErrorString(error));
  }
  if (properties.major < kMinMajor) {
    return NoDevice(absl::StrCat("expected compute capability ", kMinMajor, ".0 or later, ",
                                 properties.name, " has ", properties.major, ".",
                                 properties.minor));
  }
  if (cudaError_t error = cudaSetDevice(0); error != cudaSuccess) {
    return NoDevice(cudaGetErrorString(error));
  }
  cudaFuncAttributes code;
  if (cudaError_t error = cudaFuncGetAttributes(&code, ProbedKernel); error != cudaSuccess) {
    return NoDevice(absl::StrCat(properties.name, ": ", cudaGetErrorString(error)));
  }
  auto device = std::make_unique<CudaDevice>();
  device->name = properties.name;
  device->n_multiprocessors = properties.multiProcessorCount;
  const char* early = std::getenv("OVQ_CUDA_EARLY");
  // A GPU later than those with machine code of their own may run PTX of an earlier architecture.
  device->starts_kernels_early = code.ptxVersion >= kPtxWithEarlyStart &&
                                 !(early != nullptr && std::string_view(early) == "off");
  device->max_shared_bytes = properties.sharedMemPerBlockOptin;
  constexpr size_t kCounterBytes = CudaDevice::kCounters * sizeof(uint32_t);
  CheckCuda(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking));
  const absl::Status allocated = CatchDeviceErrors([&] {
    device->counters = static_cast<uint32_t*>(AllocateBytes(kCounterBytes));
    device->upload_host = static_cast<std::byte*>(AllocatePageLocked(2 * kUploadHalfBytes));
  });
  if (!allocated.ok()) {
    CheckCuda(cudaFree(device->counters));
    CheckCuda(cudaStreamDestroy(device->stream));
    return NoDevice(std::string(allocated.message()));
  }
  CheckCuda(cudaMemsetAsync(device->counters, 0, kCounterBytes, device->stream));
  for (cudaEvent_t& done : device->upload_done) {
    CheckCuda(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  }
  return device.release();
}

void CloseDevice(CudaDevice* device) {
  DropGraphs(*device);
  for (cudaEvent_t done : device->upload_done) CheckCuda(cudaEventDestroy(done));
  CheckCuda(cudaFree(device->counters));
  CheckCuda(cudaFreeHost(device->upload_host));
  for (CudaStaging& staging : device->staging) FreeStaging(staging);
  CheckCuda(cudaStreamDestroy(device->stream));
  delete device;
}

void BindThread(const CudaDevice& device) { CheckCuda(cudaSetDevice(device.ordinal)); }

GpuInfo Describe(const CudaDevice& device) {
  BindThread(device);
  GpuInfo info{.name = device.name};
  CheckCuda(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
  return info;
}

void* AllocateBytes(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (IsOutOfMemory(error)) {
    size_t free_bytes = 0, total_bytes = 0;
    CheckCuda(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw OutOfDeviceMemory(absl::StrCat("memory of the GPU: ", bytes, " bytes needed at once, ",
                                         free_bytes, " of ", total_bytes, " bytes are free"));
  }
  CheckCuda(error);
  return data;
}

void FreeBytes(void* data) { CheckCuda(cudaFree(data)); }

void Synchronize(CudaDevice& device) {
  CheckCuda(cudaStreamSynchronize(device.stream));
  for (CudaStaging& staging : device.staging) staging.is_sending = false;
}

// The two halves of page-locked memory alternate: one is filled while the other is copied.
void Upload(CudaDevice& device, void* to, const void* host, size_t bytes) {
  int half = 0;
  for (size_t at = 0; at < bytes; at += kUploadHalfBytes, half ^= 1) {
    const size_t n = std::min(kUploadHalfBytes, bytes - at);
    std::byte* locked = device.upload_host + static_cast<size_t>(half) * kUploadHalfBytes;
    CheckCuda(cudaEventSynchronize(device.upload_done[half]));
    std::memcpy(locked, static_cast<const std::byte*>(host) + at, n);
    CheckCuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, locked, n, cudaMemcpyHostToDevice,
                              device.stream));
    CheckCuda(cudaEventRecord(device.upload_done[half], device.stream));
  }
}

// The two halves alternate: one is emptied while the other is filled.
void CopyToHost(CudaDevice& device, void* host, const void* from, size_t bytes) {
  const auto half_index = [&](size_t at) { return static_cast<int>(at / kUploadHalfBytes % 2); };
  const auto locked_at = [&](size_t at) {
    return device.upload_host + static_cast<size_t>(half_index(at)) * kUploadHalfBytes;
  };
  const auto empty = [&](size_t at) {
    CheckCuda(cudaEventSynchronize(device.upload_done[half_index(at)]));
    std::memcpy(static_cast<std::byte*>(host) + at, locked_at(at),
                std::min(kUploadHalfBytes, bytes - at));
  };
  size_t at = 0;
  for (; at < bytes; at += kUploadHalfBytes) {
    CheckCuda(cudaMemcpyAsync(locked_at(at), static_cast<const std::byte*>(from) + at,
                              std::min(kUploadHalfBytes, bytes - at), cudaMemcpyDeviceToHost,
                              device.stream));
    CheckCuda(cudaEventRecord(device.upload_done[half_index(at)], device.stream));
    if (at > 0) empty(at - kUploadHalfBytes);
  }
  if (at > 0) empty(at - kUploadHalfBytes);
  Synchronize(device);
}

void CopyOnDevice(CudaDevice& device, void* to, const void* from, size_t bytes) {
  CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device.stream));
}

std::byte* Staging(CudaDevice& device, size_t bytes, Staged kind) {
  CudaStaging& staging = device.staging[static_cast<int>(kind)];
  if (staging.is_sending || staging.bytes < bytes) Synchronize(device);
  if (staging.bytes < bytes) {
    FreeStaging(staging);
    if (kind == Staged::kBatch) DropGraphs(device);  // they read from the old memory
    const size_t grown = std::bit_ceil(std::max(bytes, size_t{64} << 10));
    staging.host = static_cast<std::byte*>(AllocatePageLocked(grown));
    staging.device = static_cast<std::byte*>(AllocateBytes(grown));
    staging.bytes = grown;
  }
  return staging.host;
}

std::byte* SendStaging(CudaDevice& device, size_t bytes, Staged kind) {
  CudaStaging& staging = device.staging[static_cast<int>(kind)];
  if (bytes == 0) return staging.device;
  CheckCuda(
      cudaMemcpyAsync(staging.device, staging.host, bytes, cudaMemcpyHostToDevice, device.stream));
  staging.is_sending = true;
  return staging.device;
}

namespace {

// Records what fn launches as a graph. Null if the device has no memory for the graph. What fn
// throws ends the recording.
cudaGraphExec_t Record(CudaDevice& device, const std::function<void()>& fn) {
  cudaGraph_t recorded = nullptr;
  CheckCuda(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
  try {
    fn();
  } catch (...) {
    cudaStreamEndCapture(device.stream, &recorded);
    if (recorded != nullptr) CheckCuda(cudaGraphDestroy(recorded));
    throw;
  }
  CheckCuda(cudaStreamEndCapture(device.stream, &recorded));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, recorded, 0);
  CheckCuda(cudaGraphDestroy(recorded));
  if (IsOutOfMemory(error)) return nullptr;
  CheckCuda(error);
  return exec;
}

}  // namespace

// The first use is launched directly, so that scratch memory grows to the size that the batch
// needs: nothing may be allocated while a graph is recorded.
void RunCaptured(CudaDevice& device, const std::vector<int64_t>& key,
                 const std::function<void()>& fn) {
  // Clients choose slot caps and thereby keys, so the number of graphs kept is bounded.
  if (device.graphs.size() >= kMaxGraphs && !device.graphs.contains(key)) DropGraphs(device);
  const auto found = device.graphs.find(key);
  if (found == device.graphs.end()) {
    fn();
    device.graphs[key];  // not reached if fn ran out of memory
    return;
  }
  cudaGraphExec_t& exec = found->second;
  if (exec == nullptr) exec = Record(device, fn);
  // A graph needs memory of its own. Without it the batch is launched directly.
  if (exec == nullptr) return fn();
  const cudaError_t error = cudaGraphLaunch(exec, device.stream);
  if (IsOutOfMemory(error)) return fn();
  CheckCuda(error);
}

}  // namespace ovq::kernels::cuda
