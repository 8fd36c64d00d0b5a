#include "base/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace ovq {

void PreferHugePages(void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + page - 1) / page * page, end = (begin + bytes) / page * page;
  // Failure is harmless: a system without huge pages refuses.
  if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

std::string RoomFor(size_t bytes) {
  std::string text;
  text.reserve(bytes);
  if (bytes >= kLargeBytes) PreferHugePages(text.data(), bytes);
  return text;
}

}  // namespace ovq
