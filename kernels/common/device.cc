#include "kernels/common/device.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/device_cuda.h"
#include "kernels/common/instruction_sets.h"

namespace ovq::kernels {
namespace {

constexpr size_t kMinBlockBytes = size_t{1} << 20;

size_t RoundUp(size_t bytes) {
  return (bytes + ScratchArena::kAlignment - 1) / ScratchArena::kAlignment *
         ScratchArena::kAlignment;
}

void* AllocateBytes(Device device, size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  if (device == Device::kCuda) {
    if constexpr (kWithCuda) data = cuda::AllocateBytes(bytes);
  } else {
    data = std::aligned_alloc(ScratchArena::kAlignment, RoundUp(bytes));
  }
  Check(data != nullptr, "memory for a buffer");
  return data;
}

}  // namespace

const char* DeviceName(Device device) {
  constexpr const char* kNames[] = {"ref", "cpu", "cuda"};
  return kNames[static_cast<int>(device)];
}

Buffer::Buffer(Device device, size_t bytes)
    : data_(AllocateBytes(device, bytes), Free{device}), bytes_(bytes) {}

void Buffer::Free::operator()(void* data) const {
  if (device == Device::kCuda) {
    if constexpr (kWithCuda) cuda::FreeBytes(data);
  } else {
    std::free(data);
  }
}

void* ScratchArena::Allocate(size_t bytes) {
  bytes = RoundUp(std::max<size_t>(bytes, 1));
  size_t i = 0;
  // An allocation never spans two blocks: it skips the rest of a block that is too small.
  for (; i < blocks_.size(); ++i) {
    const size_t end = blocks_[i].begin + blocks_[i].memory.bytes();
    if (end <= used_) continue;
    used_ = std::max(used_, blocks_[i].begin);
    if (end - used_ >= bytes) break;
  }
  if (i == blocks_.size()) {
    const size_t begin = capacity_bytes();
    blocks_.push_back({Buffer(device_, std::max({bytes, kMinBlockBytes, begin})), begin});
    used_ = begin;
  }
  std::byte* memory = blocks_[i].memory.as<std::byte>() + (used_ - blocks_[i].begin);
  used_ += bytes;
#ifndef NDEBUG
  if (device_ != Device::kCuda) std::memset(memory, 0xff, bytes);  // NaN in every float format
#endif
  return memory;
}

size_t ScratchArena::mark() const { return used_; }

void ScratchArena::Rewind(size_t mark) { used_ = mark; }

size_t ScratchArena::capacity_bytes() const {
  return blocks_.empty() ? 0 : blocks_.back().begin + blocks_.back().memory.bytes();
}

DeviceContext::DeviceContext(Device device, int n_threads)
    : device_(device), n_threads_(n_threads), scratch_(device) {}

DeviceContext::~DeviceContext() {
  if (kWithCuda && cuda_ != nullptr) cuda::CloseDevice(cuda_);
}

absl::StatusOr<std::unique_ptr<DeviceContext>> DeviceContext::Make(Device device, int n_threads) {
  if (device == Device::kCuda && !kWithCuda) {
    return absl::InvalidArgumentError(
        "device 'cuda': this build has no CUDA kernels (it was configured without WITH_CUDA)");
  }
  if (n_threads < 0 || n_threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: expected 0 (every core) to 1024, got ", n_threads));
  }
  RETURN_IF_ERROR(CapInstructionSets());
  if (device == Device::kReference) n_threads = 1;
  if (n_threads == 0) n_threads = omp_get_num_procs();
  std::unique_ptr<DeviceContext> context(new DeviceContext(device, n_threads));
  if constexpr (kWithCuda) {
    if (device == Device::kCuda) {
      ASSIGN_OR_RETURN(CudaDevice * opened, cuda::OpenDevice());
      context->cuda_ = opened;
    }
  }
  return context;
}

void DeviceContext::BindThread() const {
  omp_set_num_threads(n_threads_);
  if (kWithCuda && cuda_ != nullptr) cuda::BindThread(*cuda_);
}

std::optional<GpuInfo> DeviceContext::Gpu() const {
  if (kWithCuda && cuda_ != nullptr) return cuda::Describe(*cuda_);
  return std::nullopt;
}

Buffer DeviceContext::Upload(const void* host, size_t bytes) {
  Buffer buffer(device_, bytes);
  CopyFromHost(buffer.as<void>(), host, bytes);
  return buffer;
}

void DeviceContext::CopyFromHost(void* device, const void* host, size_t bytes) {
  if (kWithCuda && cuda_ != nullptr) return cuda::Upload(*cuda_, device, host, bytes);
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void DeviceContext::CopyToHost(void* host, const void* device, size_t bytes) {
  if (kWithCuda && cuda_ != nullptr) return cuda::CopyToHost(*cuda_, host, device, bytes);
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void DeviceContext::Synchronize() {
  if (kWithCuda && cuda_ != nullptr) cuda::Synchronize(*cuda_);
}

std::byte* DeviceContext::Staging(size_t bytes, Staged kind) {
  if (kWithCuda && cuda_ != nullptr) return cuda::Staging(*cuda_, bytes, kind);
  Buffer& staging = staging_[static_cast<int>(kind)];
  if (staging.bytes() < bytes) staging = Buffer(device_, std::bit_ceil(bytes));
  return staging.as<std::byte>();
}

std::byte* DeviceContext::SendStaging(size_t bytes, Staged kind) {
  if (kWithCuda && cuda_ != nullptr) return cuda::SendStaging(*cuda_, bytes, kind);
  return staging_[static_cast<int>(kind)].as<std::byte>();
}

void DeviceContext::RunCaptured(const std::vector<int64_t>& key, const std::function<void()>& fn) {
  if (kWithCuda && cuda_ != nullptr) return cuda::RunCaptured(*cuda_, key, fn);
  fn();
}

}  // namespace ovq::kernels
