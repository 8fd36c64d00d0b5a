#include "tests/simt/memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>

#include "tests/simt/report.h"
#include "tests/simt/simt.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define OVQ_POISON(p, bytes) ASAN_POISON_MEMORY_REGION(p, bytes)
#define OVQ_UNPOISON(p, bytes) ASAN_UNPOISON_MEMORY_REGION(p, bytes)
#else
#define OVQ_POISON(p, bytes) static_cast<void>(0)
#define OVQ_UNPOISON(p, bytes) static_cast<void>(0)
#endif

namespace ovq::simt {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 1024;
constexpr unsigned char kGuard = 0xa5;
constexpr unsigned char kFill = 0xff;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// The end of the guard zone behind the allocation.
size_t EndOfGuard(size_t bytes) { return RoundUp(bytes, kAlignment) + kGuardBytes; }

}  // namespace

MemoryRegistry::MemoryRegistry() {
  // The memory that a test frees is the next one's: otherwise the system makes the pages of every
  // context's tens of megabytes again, which took two thirds of the tests' time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  const char* bytes = std::getenv("OVQ_SIMT_DEVICE_BYTES");
  total_ = bytes != nullptr ? std::strtoull(bytes, nullptr, 10) : size_t{8} << 30;
}

MemoryRegistry& MemoryRegistry::Get() {
  static auto* registry = new MemoryRegistry;
  return *registry;
}

void* MemoryRegistry::Allocate(size_t bytes, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  if (to_fail_ > 0 && --before_failing_ < 0) {
    --to_fail_;
    return nullptr;
  }
  if (kind == MemoryKind::kDevice && bytes > total_ - std::min(used_, total_)) return nullptr;
  void* pages = std::aligned_alloc(kAlignment, kGuardBytes + EndOfGuard(bytes));
  if (pages == nullptr) return nullptr;
  auto* p = static_cast<unsigned char*>(pages) + kGuardBytes;
  std::memset(pages, kGuard, kGuardBytes);
  std::memset(p, kFill, bytes);
  std::memset(p + bytes, kGuard, EndOfGuard(bytes) - bytes);
  // With the address sanitizer every access to the zones is detected, reads too.
  OVQ_POISON(pages, kGuardBytes);
  OVQ_POISON(p + bytes, EndOfGuard(bytes) - bytes);
  allocations_[reinterpret_cast<uintptr_t>(p)] = {bytes, kind, pages};
  if (kind == MemoryKind::kDevice) used_ += bytes;
  return p;
}

bool MemoryRegistry::Free(void* p, MemoryKind kind) {
  std::string damage;
  {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<uintptr_t>(p));
    if (found == allocations_.end()) return false;
    const Allocation allocation = found->second;
    if (allocation.kind != kind || allocation.pages == nullptr) return false;
    damage = FindDamage(found->first, allocation);
    allocations_.erase(found);
    if (kind == MemoryKind::kDevice) used_ -= allocation.bytes;
    OVQ_UNPOISON(allocation.pages, kGuardBytes + EndOfGuard(allocation.bytes));
    // Later reads see the fill pattern.
    std::memset(p, kFill, allocation.bytes);
    std::free(allocation.pages);
  }
  if (!damage.empty()) Report(damage);
  return true;
}

bool MemoryRegistry::Reserve(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > total_ - std::min(used_, total_)) return false;
  used_ += bytes;
  return true;
}

void MemoryRegistry::Return(size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_ -= bytes;
}

void MemoryRegistry::AddMapped(void* p, size_t bytes) {
  const std::lock_guard lock(mutex_);
  allocations_[reinterpret_cast<uintptr_t>(p)] = {bytes, MemoryKind::kDevice, nullptr};
}

void MemoryRegistry::RemoveMapped(void* p) {
  const std::lock_guard lock(mutex_);
  allocations_.erase(reinterpret_cast<uintptr_t>(p));
}

MemoryRegistry::Map::const_iterator MemoryRegistry::Find(const void* p) const {
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto next = allocations_.upper_bound(at + kGuardBytes);
  // Two candidates: the guard zone before the one, the bytes and guard zone of the other.
  for (int i = 0; i < 2 && next != allocations_.begin(); ++i) {
    --next;
    const Allocation& allocation = next->second;
    const bool guarded = allocation.pages != nullptr;
    const uintptr_t begin = next->first - (guarded ? kGuardBytes : 0);
    const uintptr_t end = next->first + (guarded ? EndOfGuard(allocation.bytes) : allocation.bytes);
    if (at >= begin && at < end) return next;
  }
  return allocations_.end();
}

MemoryKind MemoryRegistry::Classify(const void* p) const {
  const std::lock_guard lock(mutex_);
  const auto found = Find(p);
  return found == allocations_.end() ? MemoryKind::kHost : found->second.kind;
}

std::string MemoryRegistry::CheckRange(const void* p, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto found = Find(p);
  if (found == allocations_.end()) return "";
  uintptr_t at = reinterpret_cast<uintptr_t>(p);
  const uintptr_t end = at + bytes;
  // Mapped ranges that lie side by side count as one.
  while (found != allocations_.end() && at >= found->first) {
    at = std::max(at, found->first + found->second.bytes);
    if (end <= at) return "";
    const bool mapped = found->second.pages == nullptr;
    ++found;
    if (!mapped || found == allocations_.end() || found->second.pages != nullptr) break;
  }
  char text[160];
  std::snprintf(text, sizeof(text), "%zu bytes from %p do not lie within one allocation", bytes, p);
  return text;
}

// Repairs the zones, so that a damage is reported once.
std::string MemoryRegistry::FindDamage([[maybe_unused]] uintptr_t begin,
                                       [[maybe_unused]] const Allocation& allocation) {
  std::string text;
#ifndef __SANITIZE_ADDRESS__
  auto* p = reinterpret_cast<unsigned char*>(begin);
  const auto check = [&](unsigned char* from, unsigned char* to) {
    const auto* bad = std::find_if(from, to, [](unsigned char c) { return c != kGuard; });
    if (bad == to) return;
    char line[160];
    std::snprintf(line, sizeof(line),
                  "guard zone damaged: byte %td of the allocation of %zu bytes at %p was written",
                  bad - p, allocation.bytes, static_cast<void*>(p));
    text = line;
    std::fill(from, to, kGuard);
  };
  check(p - kGuardBytes, p);
  check(p + allocation.bytes, p + EndOfGuard(allocation.bytes));
#endif
  return text;
}

void MemoryRegistry::CheckGuards() const {
  std::string damage;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, allocation] : allocations_) {
      if (allocation.pages != nullptr && damage.empty()) damage = FindDamage(begin, allocation);
    }
  }
  if (!damage.empty()) Report(damage);
}

void MemoryRegistry::SetTotal(size_t bytes) {
  const std::lock_guard lock(mutex_);
  total_ = bytes;
}

void MemoryRegistry::Fail(int n, int first) {
  const std::lock_guard lock(mutex_);
  to_fail_ = n;
  before_failing_ = first;
}

int MemoryRegistry::to_fail() const {
  const std::lock_guard lock(mutex_);
  return to_fail_;
}

size_t MemoryRegistry::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

size_t MemoryRegistry::available() const {
  const std::lock_guard lock(mutex_);
  return total_ - std::min(used_, total_);
}

void SetDeviceMemory(size_t bytes) { MemoryRegistry::Get().SetTotal(bytes); }
void FailAllocations(int n, int first) { MemoryRegistry::Get().Fail(n, first); }
int AllocationsToFail() { return MemoryRegistry::Get().to_fail(); }

}  // namespace ovq::simt
