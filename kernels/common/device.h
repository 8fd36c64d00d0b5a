// Where kernels run, with what threads and scratch memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/check.h"

namespace ovq {

// kReference: naive loops, double accumulation, one thread: the ground truth of every kernel.
enum class Device : unsigned char { kReference, kCpu, kCuda };

const char* DeviceName(Device device);                      // "ref", "cpu", "cuda"
absl::StatusOr<Device> ParseDevice(std::string_view name);  // InvalidArgument names the choices

// Bump allocator for a step's temporaries. Blocks are kept, so a steady loop allocates nothing.
class ScratchArena {
 public:
  static constexpr size_t kAlignment = 64;
  void* Allocate(size_t bytes);  // 64-byte aligned; NaN-filled in debug builds
  size_t mark() const;
  void Rewind(size_t mark);  // frees everything allocated after mark()
  size_t capacity_bytes() const;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes;
    size_t begin;  // position of this block's first byte in the arena's linear address
  };
  std::vector<Block> blocks_;
  size_t used_ = 0;
};

// One per engine thread; not thread-safe. Kernels called with it may run n_threads() threads.
class DeviceContext {
 public:
  // n_threads = 0 takes every core the process may use.
  static absl::StatusOr<std::unique_ptr<DeviceContext>> Make(Device device, int n_threads);

  Device device() const { return device_; }
  int n_threads() const { return n_threads_; }
  ScratchArena& scratch() { return scratch_; }

  // Sets the calling thread's OpenMP team size, which oneDNN obeys: call once on the thread that
  // runs kernels.
  void BindThread() const;

 private:
  DeviceContext(Device device, int n_threads) : device_(device), n_threads_(n_threads) {}
  Device device_;
  int n_threads_;
  ScratchArena scratch_;
};

// Everything allocated through a scope is free again when it ends.
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

 private:
  ScratchArena& arena_;
  size_t mark_;
};

}  // namespace ovq
