// The CUDA side of DeviceContext, for .cu files only: the stream of all work, and launching.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/common/device.h"

namespace ovq::kernels {

// Page-locked host memory and its copy on the device; they grow together.
struct CudaStaging {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
  size_t bytes = 0;
  bool is_sending = false;  // the host has not waited since the last copy was queued
};

struct CudaDevice {
  // Thread blocks count themselves here to find out which of them finishes last; that one sets the
  // counter back to zero.
  static constexpr int kCounters = 1 << 16;

  int ordinal = 0;
  std::string name;
  int n_multiprocessors = 0;
  // LaunchEarly: where the code that the GPU runs was compiled for compute capability 9.0 or later,
  // so that kernels wait (ptx.cuh), unless OVQ_CUDA_EARLY=off in the environment.
  bool starts_kernels_early = false;
  size_t max_shared_bytes = 0;  // dynamic shared memory of one thread block
  cudaStream_t stream = nullptr;
  uint32_t* counters = nullptr;  // [kCounters], zero between kernels
  CudaStaging staging[kStagedKinds];
  // Two halves of page-locked memory through which weights and states are copied, and the event
  // after which each half may be filled again.
  std::byte* upload_host = nullptr;
  cudaEvent_t upload_done[2] = {nullptr, nullptr};
  std::map<std::vector<int64_t>, cudaGraphExec_t> graphs;  // null until the second use
  std::unordered_map<const void*, size_t>
      shared_bytes;  // dynamic shared memory allowed for each kernel
  // cuBLASLt's handle and its scratch memory, made by kernels/ops/matmul_cublas.cu.
  std::shared_ptr<void> cublas;
  Buffer cublas_workspace;
};

namespace cuda {

// Ends the process with file, line and CUDA's own message: after a failed call the contents of the
// device's memory are unknown, so whatever supervises the process has to start it again.
void CheckCuda(cudaError_t error, const char* file = __builtin_FILE(), int line = __builtin_LINE());

inline cudaStream_t Stream(DeviceContext& context) { return context.cuda().stream; }

// Allows the kernel's thread blocks `bytes` of dynamic shared memory from now on. A larger
// allowance from before stays, because recorded batches may need it. All kernels ask for the
// largest share of a multiprocessor's memory as shared memory: between two that differ in it the
// multiprocessor has to drain.
inline void AllowShared(DeviceContext& context, const void* kernel, size_t bytes) {
  constexpr size_t kAlwaysAllowed = 48 * 1024;
  const auto [allowed, is_new] = context.cuda().shared_bytes.try_emplace(kernel, kAlwaysAllowed);
  if (is_new) {
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared));
  }
  if (bytes <= allowed->second) return;
  allowed->second = bytes;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(bytes)));
}

// A kernel's place on the stream: kInOrder begins when the kernels before it have ended; kEarly may
// begin as soon as their thread blocks have all begun and called AllowNextKernel or ended (ptx.cuh;
// "programmatic dependent launch" in the CUDA programming guide).
enum class Start { kInOrder, kEarly };

// Launches one kernel on the context's stream. Arguments convert to the kernel's parameter types.
template <Start kStart, class... P, class... A>
void LaunchKernel(DeviceContext& context, void (*kernel)(P...), dim3 grid, dim3 block,
                  size_t shared_bytes, A&&... args) {
  AllowShared(context, reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = Stream(context);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  if (kStart == Start::kEarly && context.cuda().starts_kernels_early) {
    config.attrs = &early;
    config.numAttrs = 1;
  }
  CheckCuda(cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...));
}

template <class... P, class... A>
void Launch(DeviceContext& context, void (*kernel)(P...), dim3 grid, dim3 block,
            size_t shared_bytes, A&&... args) {
  LaunchKernel<Start::kInOrder>(context, kernel, grid, block, shared_bytes,
                                std::forward<A>(args)...);
}

// Launches a kernel that may begin before the kernels before it have ended. Every thread of it
// calls WaitForKernelsBefore before it reads or writes what they or the host's copies may touch.
template <class... P, class... A>
void LaunchEarly(DeviceContext& context, void (*kernel)(P...), dim3 grid, dim3 block,
                 size_t shared_bytes, A&&... args) {
  LaunchKernel<Start::kEarly>(context, kernel, grid, block, shared_bytes, std::forward<A>(args)...);
}

}  // namespace cuda
}  // namespace ovq::kernels
