#include "model/file_map.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace ovq {
namespace {

// What the handler looks at, which must not wait for a lock.
struct Range {
  std::atomic<bool> taken = false;
  std::atomic<uintptr_t> begin = 0, end = 0;
  std::atomic<bool> torn = false;
};
constexpr size_t kMostMaps = 4096;
constinit std::array<Range, kMostMaps> ranges;
struct sigaction before;  // what others do with the signal

void OnBusError(int, siginfo_t* info, void*) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Range& range : ranges) {
    if (address < range.begin || address >= range.end) continue;
    // What lies behind is gone as well.
    const uintptr_t page = address & ~static_cast<uintptr_t>(sysconf(_SC_PAGESIZE) - 1);
    const void* zeros = mmap(reinterpret_cast<void*>(page), range.end - page, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == MAP_FAILED) break;
    range.torn = true;
    errno = error;
    return;
  }
  // Not ours, but whoever's it was before, when this returns.
  sigaction(SIGBUS, &before, nullptr);
  raise(SIGBUS);
}

void HandleBusErrors() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
  });
}

}  // namespace

FileMap::FileMap(int fd, size_t bytes) {
  HandleBusErrors();
  while (place_ < kMostMaps && ranges[place_].taken.exchange(true)) ++place_;
  if (place_ == kMostMaps) {
    errno = EMFILE;
    return;
  }
  Range& range = ranges[place_];
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (memory == MAP_FAILED) {
    range.taken = false;
    return;
  }
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  range.torn = false;
  range.begin = reinterpret_cast<uintptr_t>(data_);
  range.end = range.begin + bytes;
}

FileMap::~FileMap() {
  if (data_ == nullptr) return;
  Range& range = ranges[place_];
  range.end = 0;
  munmap(data_, bytes_);
  range.taken = false;
}

bool FileMap::torn() const { return data_ != nullptr && ranges[place_].torn; }

}  // namespace ovq
