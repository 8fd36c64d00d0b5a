#include "base/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

// A mapping as the signal handler sees it. Ranges are reused but never freed, because the handler
// walks them without a lock.
struct Range {
  std::atomic<uintptr_t> begin = 0;  // 0: unused
  std::atomic<uintptr_t> end = 0;
  std::atomic<uintptr_t> lost = 0;  // address of the first page that could not be read; 0: none
  Range* next = nullptr;
};

std::mutex g_mutex;  // serializes changes of ranges
std::atomic<Range*> g_ranges = nullptr;
struct sigaction g_before = {};
uintptr_t g_page_bytes = 0;

Range* FindRange(uintptr_t address) {
  for (Range* range = g_ranges; range != nullptr; range = range->next) {
    if (range->begin <= address && address < range->end) return range;
  }
  return nullptr;
}

// The interrupted read continues, on zeros.
void OnBusError(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const bool sent = info->si_code <= 0;  // sent by a process, so without an address
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Range* const range = sent ? nullptr : FindRange(address);
  bool mended = false;
  if (range != nullptr) {
    const uintptr_t page = address & ~(g_page_bytes - 1);
    // Zeros also replace all that follows: a truncated file has none of it, and one fault is
    // enough.
    void* const to = reinterpret_cast<void*>(page);
    mended = mmap(to, range->end - page, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == to;
    uintptr_t none = 0;
    range->lost.compare_exchange_strong(none, page);
  }
  if (!mended) {  // the fault, or the signal, repeats under the previous handler
    sigaction(SIGBUS, &g_before, nullptr);
    if (sent) raise(signal);
  }
  errno = saved_errno;
}

Range* Guard(const void* data, size_t bytes) {
  std::lock_guard lock(g_mutex);
  if (g_ranges == nullptr) {
    g_page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &g_before);
  }
  Range* range = g_ranges;
  while (range != nullptr && range->begin != 0) range = range->next;
  const bool is_new = range == nullptr;
  if (is_new) range = new Range;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  range->lost = 0;
  range->end = begin + bytes;
  range->begin = begin;
  if (is_new) {
    range->next = g_ranges;
    g_ranges = range;
  }
  return range;
}

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

}  // namespace

struct MappedFile::Mapping {
  std::string path;
  int fd = -1;
  struct stat opened {};
  std::byte* data = nullptr;
  Range* range = nullptr;

  size_t size() const { return static_cast<size_t>(opened.st_size); }
  ~Mapping() {
    if (range != nullptr) range->begin = 0;
    if (data != nullptr) munmap(data, size());
    if (fd >= 0) close(fd);
  }
};

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.mapping_ = std::make_shared<Mapping>();
  Mapping& mapping = *file.mapping_;
  mapping.path = path;
  // Non-blocking, so that a pipe of that name does not hang the start.
  mapping.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (mapping.fd < 0) {
    const int error = errno;
    const std::string message = absl::StrCat(path, ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::DataLossError(message);
  }
  if (fstat(mapping.fd, &mapping.opened) != 0 || !S_ISREG(mapping.opened.st_mode)) {
    return Damaged(path, "not a regular file");
  }
  if (mapping.size() == 0) return file;
  void* const data = mmap(nullptr, mapping.size(), PROT_READ, MAP_PRIVATE, mapping.fd, 0);
  if (data == MAP_FAILED) return Damaged(path, absl::StrCat("mmap: ", std::strerror(errno)));
  mapping.data = static_cast<std::byte*>(data);
  mapping.range = Guard(data, mapping.size());
  return file;
}

std::byte* MappedFile::data() const { return mapping_ == nullptr ? nullptr : mapping_->data; }

size_t MappedFile::size() const { return mapping_ == nullptr ? 0 : mapping_->size(); }

absl::Status MappedFile::CheckUnchanged() const {
  if (mapping_ == nullptr) return absl::OkStatus();
  const Mapping& mapping = *mapping_;
  struct stat now {};
  if (fstat(mapping.fd, &now) != 0) return Damaged(mapping.path, std::strerror(errno));
  if (now.st_size != mapping.opened.st_size) {
    return Damaged(mapping.path,
                   absl::StrCat("was cut short, or written, while it was read; it had ",
                                mapping.opened.st_size, " bytes, and has ", now.st_size));
  }
  const timespec &written = now.st_mtim, &before = mapping.opened.st_mtim;
  if (written.tv_sec != before.tv_sec || written.tv_nsec != before.tv_nsec) {
    return Damaged(mapping.path, "was written while it was read");
  }
  if (mapping.range == nullptr) return absl::OkStatus();  // an empty file has no pages
  if (const uintptr_t lost = mapping.range->lost; lost != 0) {
    return Damaged(mapping.path, absl::StrCat("the bytes from ", lost - mapping.range->begin,
                                              " on could not be read"));
  }
  return absl::OkStatus();
}

}  // namespace ovq
