#include "tests/simt/launch.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "tests/simt/block.h"
#include "tests/simt/fault.h"
#include "tests/simt/intrinsics.h"
#include "tests/simt/memory.h"
#include "tests/simt/report.h"
#include "tests/simt/simt.h"
#include "tests/simt/stream.h"

namespace ovq::simt {
namespace {

constexpr size_t kDefaultSharedBytes = 48 << 10;

std::atomic<Order> order = Order::kAlternate;
std::atomic<size_t> launches = 0;

std::mutex limits_mutex;
std::map<const void*, size_t>& SharedLimits() {
  static auto* limits = new std::map<const void*, size_t>;
  return *limits;
}

// Percent of a multiprocessor's shared memory, by kernel.
std::map<const void*, int>& CarveOuts() {
  static auto* carve_outs = new std::map<const void*, int>;
  return *carve_outs;
}
int most_blocks = 32;
int ptx_version = 90;

size_t SharedLimit(const void* kernel) {
  const std::lock_guard lock(limits_mutex);
  const auto found = SharedLimits().find(kernel);
  return found == SharedLimits().end() ? kDefaultSharedBytes : found->second;
}

cudaError_t CheckLaunch(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxThreads || block.z > 64) return cudaErrorInvalidConfiguration;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 0xffff ||
      grid.z > 0xffff) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes > SharedLimit(kernel)) return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t RunKernel(const cudaLaunchConfig_t& config, const void* kernel, bool early,
                      const std::vector<const void*>& pointers, const std::function<void()>& body) {
  // One executor: launches of several operating system threads take turns.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const void* p : pointers) {
    if (p == nullptr || MemoryRegistry::Get().Classify(p) != MemoryKind::kHost) continue;
    char text[96];
    std::snprintf(text, sizeof(text), ": the argument %p is no address of the device", p);
    Report("kernel " + Symbolize(kernel) + text);
    return cudaErrorIllegalAddress;
  }
  const size_t number = launches++;
  const bool descending =
      order == Order::kDescending || (order == Order::kAlternate && number % 2 == 1);
  const FaultHandler handler;
  const Launch launch{kernel,
                      config.gridDim,
                      config.blockDim,
                      static_cast<uint32_t>(config.dynamicSmemBytes),
                      descending,
                      early,
                      &body};
  if (!Executor::Get().Run(launch)) return cudaErrorLaunchFailure;
  MemoryRegistry::Get().CheckGuards();
  return cudaSuccess;
}

}  // namespace

void SetOrder(Order value) { order = value; }

void SetMostBlocks(int blocks) { most_blocks = blocks; }

void SetPtxVersion(int version) { ptx_version = version; }

size_t LaunchCount() { return launches; }

size_t FenceCount() { return fences; }

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::vector<const void*> pointers, std::function<void()> body) {
  if (const cudaError_t error = CheckLaunch(config, kernel); error != cudaSuccess) {
    return Failed(error);
  }
  const bool early =
      std::any_of(config.attrs, config.attrs + config.numAttrs, [](const auto& attribute) {
        return attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
               attribute.val.programmaticStreamSerializationAllowed != 0;
      });
  return Submit(config.stream,
                [config, kernel, early, pointers = std::move(pointers), body = std::move(body)] {
                  return RunKernel(config, kernel, early, pointers, body);
                });
}

}  // namespace ovq::simt

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  using namespace ovq::simt;
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    if (value < -1 || value > 100) return Failed(cudaErrorInvalidValue);
    const std::lock_guard lock(limits_mutex);
    CarveOuts()[kernel] = value;
    return cudaSuccess;
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  if (value < 0 || value > most) return Failed(cudaErrorInvalidValue);
  const std::lock_guard lock(limits_mutex);
  SharedLimits()[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {.ptxVersion = ovq::simt::ptx_version, .binaryVersion = 90};
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t shared_bytes) {
  using namespace ovq::simt;
  if (threads < 1 || shared_bytes > SharedLimit(kernel)) return Failed(cudaErrorInvalidValue);
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  const size_t of_block = shared_bytes + properties.reservedSharedMemPerBlock;
  const std::lock_guard lock(limits_mutex);
  const auto found = CarveOuts().find(kernel);
  const size_t carved =
      found == CarveOuts().end() || found->second < 0
          ? of_block
          : properties.sharedMemPerMultiprocessor * static_cast<size_t>(found->second) / 100;
  const size_t fit = std::max(carved, of_block) / of_block;
  *blocks = std::min(
      {static_cast<int>(fit), properties.maxThreadsPerMultiProcessor / threads, most_blocks});
  return cudaSuccess;
}
