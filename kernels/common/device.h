// The device that kernels run on, with its threads and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "kernels/common/device_types.h"
#include "kernels/common/tensor.h"

namespace ovq::kernels {

const char* DeviceName(Device device);  // "ref", "cpu", "cuda"

// Owned memory of one device.
class Buffer {
 public:
  Buffer() = default;
  // 256-byte aligned, not initialised. Throws OutOfDeviceMemory. May outlive its context.
  Buffer(Device device, size_t bytes);

  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  struct Free {
    Device device;
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_{nullptr, Free{Device::kCpu}};
  size_t bytes_ = 0;
};

// Bump allocator for a batch's temporaries. It keeps its blocks, so a steady loop allocates
// nothing, and equal requests after the same mark get equal addresses.
class ScratchArena {
 public:
  static constexpr size_t kAlignment = 256;
  explicit ScratchArena(Device device) : device_(device) {}
  void* Allocate(size_t bytes);  // kAlignment-aligned; NaN-filled in debug builds on the CPU
  size_t mark() const;
  void Rewind(size_t mark);  // frees everything allocated after mark()
  size_t capacity_bytes() const;

 private:
  struct Block {
    Buffer memory;
    size_t begin;  // position of this block's first byte in the arena's linear address
  };
  Device device_;
  std::vector<Block> blocks_;
  size_t used_ = 0;
};

// One device and the resources of one engine thread; not thread-safe. Kernels may use n_threads()
// threads, or run later on the device's stream: they read and write the device's memory, and the
// host sees the results after Synchronize or CopyToHost. On the CPU the device's memory is the
// host's, and every call has finished when it returns.
class DeviceContext {
 public:
  // n_threads = 0 uses every core that the process may use.
  static absl::StatusOr<std::unique_ptr<DeviceContext>> Make(Device device, int n_threads);
  ~DeviceContext();

  Device device() const { return device_; }
  int n_threads() const { return single_threaded_ ? 1 : n_threads_; }
  ScratchArena& scratch() { return scratch_; }
  CudaDevice& cuda() { return *cuda_; }  // kCuda only

  // Sets the calling thread's OpenMP team size, which oneDNN obeys, and its CUDA device. Call once,
  // on the thread that runs kernels.
  void BindThread() const;

  std::optional<GpuInfo> Gpu() const;  // current values; none on the CPU. Any thread

  Buffer Upload(const void* host, size_t bytes);  // copies; `host` may be freed at once
  template <class T>
  Buffer Upload(const std::vector<T>& values) {
    return Upload(values.data(), values.size() * sizeof(T));
  }
  void CopyFromHost(void* device, const void* host, size_t bytes);  // as Upload
  void CopyToHost(void* host, const void* device, size_t bytes);    // after all work before it
  void Synchronize();

  // Two calls send what the host prepares for a batch in one copy: fill the memory that Staging
  // returns (page-locked on CUDA), then call SendStaging. The copy on the device keeps its address
  // until more bytes than ever before are sent. Staging waits for the device where a copy of the
  // kind may still be under way: no Synchronize or CopyToHost has come since.
  std::byte* Staging(size_t bytes, Staged kind = Staged::kBatch);
  std::byte* SendStaging(size_t bytes, Staged kind = Staged::kBatch);

  // Runs fn, whose kernel launches depend only on `key` and on device memory. CUDA records the
  // launches as a graph the second time it sees a key and replays the graph from then on.
  void RunCaptured(const std::vector<int64_t>& key, const std::function<void()>& fn);

 private:
  friend class SingleThreadScope;
  DeviceContext(Device device, int n_threads);
  Device device_;
  int n_threads_;
  bool single_threaded_ = false;
  CudaDevice* cuda_ = nullptr;
  ScratchArena scratch_;
  Buffer staging_[kStagedKinds];
};

// During its lifetime, and if `alone`, kernels use only the calling thread: for batches so small
// that waking the other threads takes longer than they save.
class SingleThreadScope {
 public:
  SingleThreadScope(DeviceContext& context, bool alone)
      : context_(context), before_(context.single_threaded_) {
    context_.single_threaded_ = alone;
  }
  ~SingleThreadScope() { context_.single_threaded_ = before_; }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  DeviceContext& context_;
  const bool before_;
};

// Scratch memory allocated through a scope is freed when the scope ends.
class ScratchScope {
 public:
  explicit ScratchScope(DeviceContext& context) : arena_(context.scratch()), mark_(arena_.mark()) {}
  ~ScratchScope() { arena_.Rewind(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

  template <class T>
  T* Allocate(size_t n) {
    return static_cast<T*>(arena_.Allocate(n * sizeof(T)));
  }
  TensorView Tensor(DType dtype, const Shape& shape) {
    const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeBytes(dtype);
    return {arena_.Allocate(bytes), dtype, shape};
  }

 private:
  ScratchArena& arena_;
  size_t mark_;
};

}  // namespace ovq::kernels
