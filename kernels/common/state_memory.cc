#include "kernels/common/state_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/huge_pages.h"
#include "kernels/common/device_cuda.h"

namespace ovq::kernels {

namespace {

// Whether some page of committed memory is resident.
bool IsTouched(std::byte* begin, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kHostPageBytes);
  return mincore(begin, bytes, pages.data()) != 0 ||
         std::ranges::any_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

}  // namespace

size_t StatePageBytes(DeviceContext& context) {
  if (kWithCuda && context.device() == Device::kCuda) return cuda::StatePageBytes(context.cuda());
  return kHostPageBytes;
}

StateMemory::StateMemory(DeviceContext& context)
    : context_(context), page_bytes_(StatePageBytes(context)) {
  if (kWithCuda && context.device() == Device::kCuda) pages_ = cuda::OpenStatePages(context.cuda());
}

StateMemory::~StateMemory() {
  if (kWithCuda && pages_ != nullptr) cuda::CloseStatePages(pages_);
  (void)DropKept();
}

std::byte* StateMemory::Reserve(size_t bytes) {
  if (kWithCuda && pages_ != nullptr) return cuda::ReserveRange(*pages_, bytes);
  const auto kept = std::ranges::find_if(
      kept_.rbegin(), kept_.rend(), [&](std::byte* base) { return ranges_[base].bytes == bytes; });
  if (kept != kept_.rend()) {
    std::byte* const base = *kept;
    kept_.erase(std::next(kept).base());
    kept_bytes_ -= ranges_[base].committed();
    return base;
  }
  // Ranges of a size that nobody asks for any more make room.
  if (kept_bytes_ + kSmallBytes > kKeptBytes) DropOldest();
  const auto map = [&] {
    return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void* range = map();
  if (range == MAP_FAILED && DropKept()) range = map();
  if (range == MAP_FAILED) return nullptr;
  // Huge pages only back 2 MiB that are committed in full: they never reach into uncommitted
  // memory.
  PreferHugePages(range, bytes);
  auto* const base = static_cast<std::byte*>(range);
  ranges_[base] = {.bytes = bytes, .pieces = {}};
  return base;
}

bool StateMemory::Commit(std::byte* base, size_t offset, size_t bytes) {
  Check(offset % page_bytes_ == 0 && bytes % page_bytes_ == 0, "state memory comes in pages");
  if (bytes == 0) return true;
  if (kWithCuda && pages_ != nullptr) return cuda::CommitPages(*pages_, base, offset, bytes);
  return CommitOnHost(ranges_.at(base), base, offset, offset + bytes);
}

bool StateMemory::CommitOnHost(HostRange& range, std::byte* base, size_t offset, size_t end) {
  const auto begun = std::ranges::find_if(range.pieces, [&](const auto& piece) {
    return piece.first <= offset && offset <= piece.second;
  });
  const bool found = begun != range.pieces.end();
  if (found && end <= begun->second) return true;  // it was kept
  const auto commit = [&] {
    return mprotect(base + offset, end - offset, PROT_READ | PROT_WRITE) == 0;
  };
  if (!commit() && !(DropKept() && commit())) return false;
  if (found) {
    begun->second = end;
  } else {
    range.pieces.emplace_back(offset, end);
  }
  return true;
}

void StateMemory::Release(std::byte* base, size_t bytes) {
  if (kWithCuda && pages_ != nullptr) return cuda::ReleaseRange(*pages_, base, bytes);
  const auto range = ranges_.find(base);
  Check(range != ranges_.end() && range->second.bytes == bytes,
        "a state's range is released whole");
  if (!Keep(range)) Unmap(range);
}

size_t StateMemory::HostRange::committed() const {
  size_t total = 0;
  for (const auto& [begin, end] : pieces) total += end - begin;
  return total;
}

bool StateMemory::Keep(HostRanges::iterator range) {
  const size_t committed = range->second.committed();
  if (committed > kSmallBytes || kept_bytes_ + committed > kKeptBytes) return false;
  // A session without tokens has touched no page yet, and zeroing would be the first touch.
  const bool touched = std::ranges::any_of(range->second.pieces, [&](const auto& piece) {
    return IsTouched(range->first + piece.first, piece.second - piece.first);
  });
  if (!touched) return false;
  for (const auto& [begin, end] : range->second.pieces) {
    std::memset(range->first + begin, 0, end - begin);
  }
  kept_.push_back(range->first);
  kept_bytes_ += committed;
  return true;
}

void StateMemory::Unmap(HostRanges::iterator range) {
  const auto [base, bytes] = std::pair(range->first, range->second.bytes);
  ranges_.erase(range);
  if (munmap(base, bytes) == 0) return;
  // Without mappings left to split one, the pages are freed and only the addresses are lost.
  Check(errno == ENOMEM && madvise(base, bytes, MADV_DONTNEED) == 0,
        "a state's address range is mapped");
}

void StateMemory::DropOldest() {
  const auto range = ranges_.find(kept_.front());
  kept_.erase(kept_.begin());
  kept_bytes_ -= range->second.committed();
  Unmap(range);
}

bool StateMemory::DropKept() {
  if (kept_.empty()) return false;
  while (!kept_.empty()) DropOldest();
  return true;
}

void StateMemory::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (kWithCuda && pages_ != nullptr) return cuda::CopyOnDevice(context_.cuda(), to, from, bytes);
  std::memcpy(to, from, bytes);
}

namespace {

// Copies n pieces of a size known to the compiler, each to_stride and from_stride bytes after the
// one before.
template <size_t kBytes>
void CopyPieces(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
                size_t n) {
  for (size_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, kBytes);
}

void CopyPieces(size_t bytes, std::byte* to, size_t to_stride, const std::byte* from,
                size_t from_stride, size_t n) {
  switch (bytes) {  // sizes of a few tokens' elements
    case 2:
      return CopyPieces<2>(to, to_stride, from, from_stride, n);
    case 4:
      return CopyPieces<4>(to, to_stride, from, from_stride, n);
    case 8:
      return CopyPieces<8>(to, to_stride, from, from_stride, n);
    default:
      for (size_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
  }
}

}  // namespace

void StateMemory::Pack(const std::byte* base, std::span<const StateExtent> extents,
                       std::byte* packed) {
  if (kWithCuda && pages_ != nullptr) return cuda::PackExtents(context_, base, extents, packed);
  for (const StateExtent& extent : extents) {
    CopyPieces(extent.bytes, packed, extent.bytes, base + extent.offset, extent.stride,
               extent.pieces);
    packed += extent.total_bytes();
  }
}

void StateMemory::Unpack(std::byte* base, std::span<const StateExtent> extents,
                         const std::byte* packed) {
  if (kWithCuda && pages_ != nullptr) return cuda::UnpackExtents(context_, base, extents, packed);
  for (const StateExtent& extent : extents) {
    CopyPieces(extent.bytes, base + extent.offset, extent.stride, packed, extent.bytes,
               extent.pieces);
    packed += extent.total_bytes();
  }
}

}  // namespace ovq::kernels
