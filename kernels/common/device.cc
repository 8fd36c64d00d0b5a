#include "kernels/common/device.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

constexpr size_t kMinBlockBytes = size_t{1} << 20;

size_t RoundUp(size_t bytes) {
  return (bytes + ScratchArena::kAlignment - 1) / ScratchArena::kAlignment *
         ScratchArena::kAlignment;
}

std::byte* AlignedBegin(std::byte* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return memory + (RoundUp(address) - address);
}

}  // namespace

const char* DeviceName(Device device) {
  switch (device) {
    case Device::kReference:
      return "ref";
    case Device::kCpu:
      return "cpu";
    case Device::kCuda:
      return "cuda";
  }
  return "?";
}

absl::StatusOr<Device> ParseDevice(std::string_view name) {
  for (Device device : {Device::kReference, Device::kCpu, Device::kCuda}) {
    if (name == DeviceName(device)) return device;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown device '", std::string(name), "': expected cpu, ref or cuda"));
}

void* ScratchArena::Allocate(size_t bytes) {
  bytes = RoundUp(std::max<size_t>(bytes, 1));
  size_t i = 0;
  // An allocation never spans two blocks: it skips what is left of one that is too small.
  for (; i < blocks_.size(); ++i) {
    const size_t end = blocks_[i].begin + blocks_[i].bytes;
    if (end <= used_) continue;
    used_ = std::max(used_, blocks_[i].begin);
    if (end - used_ >= bytes) break;
  }
  if (i == blocks_.size()) {
    const size_t begin = blocks_.empty() ? 0 : blocks_.back().begin + blocks_.back().bytes;
    const size_t size = std::max({bytes, kMinBlockBytes, capacity_bytes()});
    blocks_.push_back({std::make_unique<std::byte[]>(size + kAlignment), size, begin});
    used_ = begin;
  }
  std::byte* memory = AlignedBegin(blocks_[i].memory.get()) + (used_ - blocks_[i].begin);
  used_ += bytes;
#ifndef NDEBUG
  std::memset(memory, 0xff, bytes);  // NaN in every float format
#endif
  return memory;
}

size_t ScratchArena::mark() const { return used_; }

void ScratchArena::Rewind(size_t mark) { used_ = mark; }

size_t ScratchArena::capacity_bytes() const {
  return blocks_.empty() ? 0 : blocks_.back().begin + blocks_.back().bytes;
}

absl::StatusOr<std::unique_ptr<DeviceContext>> DeviceContext::Make(Device device, int n_threads) {
  if (device == Device::kCuda) {
    return absl::InvalidArgumentError("device 'cuda': this build has no CUDA kernels");
  }
  if (n_threads < 0 || n_threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: expected 0 (every core) to 1024, got ", n_threads));
  }
  if (device == Device::kReference) n_threads = 1;
  if (n_threads == 0) n_threads = omp_get_num_procs();
  return std::unique_ptr<DeviceContext>(new DeviceContext(device, n_threads));
}

void DeviceContext::BindThread() const { omp_set_num_threads(n_threads_); }

}  // namespace ovq
