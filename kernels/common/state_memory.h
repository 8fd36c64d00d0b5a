// The memory behind session states: address ranges of a device, backed by pages only as far as they
// are committed. Pages arrive zeroed, so what a session wrote is never seen by another.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/common/device.h"

namespace ovq {

// The unit in which memory is committed: 4 KiB on ref and cpu, the GPU's allocation granularity on
// CUDA. That has been 2 MiB on every GPU so far, which a plan assumes where there is no GPU to ask.
inline constexpr size_t kHostPageBytes = 4096;
inline constexpr size_t kUsualGpuPageBytes = size_t{2} << 20;
size_t StatePageBytes(DeviceContext& context);

// Bytes of one session, relative to its base: a range of them, or several of the same length at
// equal distances.
struct StateExtent {
  size_t offset;
  size_t bytes;  // of each piece
  size_t pieces = 1;
  size_t stride = 0;  // from one piece to the next
  size_t total_bytes() const { return pieces * bytes; }
};

// Engine thread only. Everything happens in the order of the context's other work. Offsets and
// sizes of ranges are multiples of page_bytes().
class StateMemory {
 public:
  explicit StateMemory(DeviceContext& context);
  ~StateMemory();  // every range is released
  StateMemory(const StateMemory&) = delete;
  StateMemory& operator=(const StateMemory&) = delete;

  size_t page_bytes() const { return page_bytes_; }
  bool on_host() const { return pages_ == nullptr; }  // so that any code may write to it

  // Address space alone; null if there is none left.
  std::byte* Reserve(size_t bytes);
  // Backs [offset, offset + bytes) of a range, none of it committed before, unless the caller had
  // no use for it in the end. False if the system, or the GPU, has no memory or no mappings left;
  // it may be asked again.
  [[nodiscard]] bool Commit(std::byte* base, size_t offset, size_t bytes);
  // Gives back a whole range of `bytes` with its pages. On CUDA they are zeroed beside later work
  // and kept for the next Commit: a steady load creates no physical memory, and nobody waits.
  void Release(std::byte* base, size_t bytes);

  void Copy(std::byte* to, const std::byte* from, size_t bytes);  // between committed memory
  // What the extents of a session hold, end to end in `packed`, which is the device's memory too;
  // and the way back.
  void Pack(const std::byte* base, std::span<const StateExtent> extents, std::byte* packed);
  void Unpack(std::byte* base, std::span<const StateExtent> extents, const std::byte* packed);
  // Both have ended on the host's side when they return.
  void CopyOut(void* host, const std::byte* from, size_t bytes);
  void CopyIn(std::byte* to, const void* host, size_t bytes);

 private:
  DeviceContext& context_;
  const size_t page_bytes_;
  StatePages* pages_ = nullptr;  // kCuda only
};

}  // namespace ovq
