// StateMemory: the memory behind session states. It hands out address ranges of a device that are
// backed by pages only as far as they are committed. Pages arrive zeroed, so no session sees what
// another wrote.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/common/device.h"

namespace ovq::kernels {

// The unit of commitment: 4 KiB on the CPU, the GPU's allocation granularity on CUDA. That has
// been 2 MiB on every GPU so far, and a plan assumes 2 MiB where there is no GPU to ask.
inline constexpr size_t kHostPageBytes = 4096;
inline constexpr size_t kUsualGpuPageBytes = size_t{2} << 20;
size_t StatePageBytes(DeviceContext& context);

// Bytes of one session relative to its base: one range, or several of equal length at equal
// distances.
struct StateExtent {
  size_t offset;
  size_t bytes;  // length of each piece
  size_t pieces = 1;
  size_t stride = 0;  // from one piece to the next
  size_t total_bytes() const { return pieces * bytes; }
};

// Engine thread only. All operations are ordered with the context's other work. Offsets and sizes
// of ranges are multiples of page_bytes().
class StateMemory {
 public:
  explicit StateMemory(DeviceContext& context);
  ~StateMemory();  // every range must have been released
  StateMemory(const StateMemory&) = delete;
  StateMemory& operator=(const StateMemory&) = delete;

  size_t page_bytes() const { return page_bytes_; }
  bool on_host() const { return pages_ == nullptr; }  // true: any code may write to it

  // Reserves address space only. Null if there is none left.
  std::byte* Reserve(size_t bytes);
  // Backs [offset, offset + bytes) of a range with pages. None of it may have been committed
  // before, unless the caller then made no use of it. False if the system or the GPU has no memory
  // or mappings left; the caller may try again.
  [[nodiscard]] bool Commit(std::byte* base, size_t offset, size_t bytes);
  // Releases a whole range of `bytes` with its pages. On CUDA the pages are zeroed beside later
  // work and kept for the next Commit, so a steady load creates no physical memory and nobody
  // waits. On the host a small range that was written to is zeroed and kept for the next Reserve of
  // its size, where kKeptBytes have room: first touches of pages would take longer than a short
  // call's tokens.
  void Release(std::byte* base, size_t bytes);

  static constexpr size_t kSmallBytes = size_t{2} << 20;  // committed; zeroed in some 0.1 ms
  static constexpr size_t kKeptBytes = size_t{16} << 20;

  void Copy(std::byte* to, const std::byte* from, size_t bytes);  // between committed memory
  // Pack copies the extents of a session end to end into `packed`, which is device memory too;
  // Unpack copies them back.
  void Pack(const std::byte* base, std::span<const StateExtent> extents, std::byte* packed);
  void Unpack(std::byte* base, std::span<const StateExtent> extents, const std::byte* packed);
  // The host's memory may be used or freed as soon as these return.
  void CopyOut(void* host, const std::byte* from, size_t bytes) {
    context_.CopyToHost(host, from, bytes);
  }
  void CopyIn(std::byte* to, const void* host, size_t bytes) {
    context_.CopyFromHost(to, host, bytes);
  }

 private:
  // A range of the host. pieces: offsets and ends of what is committed, in the order of the first
  // commits; some may overlap.
  struct HostRange {
    size_t bytes;
    std::vector<std::pair<size_t, size_t>> pieces;
    size_t committed() const;
  };
  using HostRanges = std::map<std::byte*, HostRange>;

  bool CommitOnHost(HostRange& range, std::byte* base, size_t offset, size_t end);
  bool Keep(HostRanges::iterator range);
  void Unmap(HostRanges::iterator range);
  void DropOldest();
  bool DropKept();  // false if nothing was kept

  DeviceContext& context_;
  const size_t page_bytes_;
  StatePages* pages_ = nullptr;   // kCuda only
  HostRanges ranges_;             // of the host, those that are kept, too
  std::vector<std::byte*> kept_;  // the last one first to be reserved
  size_t kept_bytes_ = 0;
};

}  // namespace ovq::kernels
