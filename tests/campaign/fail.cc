// LD_PRELOAD library that makes C library calls fail when faults.py says so. Both map the file
// named by OVQ_FAULTS, so the failing calls, their error and rate can change while the server runs.
// Signals listed in OVQ_FAULTS_SIGNALS are raised before the program starts.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Layout of the mapped file, as faults.py packs it.
struct Control {
  std::atomic<int32_t> what;   // a bit for each Kind
  std::atomic<int32_t> error;  // errno
  std::atomic<int32_t> every;  // every n-th call fails
  std::atomic<int32_t> clock;  // s, offset of the time of day
  std::atomic<int32_t> calls;  // calls that could have failed
  std::atomic<int32_t> failed;
};

enum Kind : int32_t {
  kMap = 1,
  kProtect = 2,
  kOpen = 4,
  kWrite = 8,
  kSync = 16,
  kRename = 32,
  kRandom = 64,
  kAllocate = 128
};

constexpr size_t kLarge = 64 << 10;  // bytes; libraries that cannot handle failure allocate less

Control* MapControl() {
  static Control none = {};
  const char* path = getenv("OVQ_FAULTS");
  const int fd =
      path == nullptr ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR));
  if (fd < 0) return &none;
  void* at = ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return at == MAP_FAILED ? &none : static_cast<Control*>(at);
}
Control* control = nullptr;  // null until the program starts

[[gnu::constructor]] void Begin() {
  control = MapControl();
  const char* next = getenv("OVQ_FAULTS_SIGNALS");
  for (char* end = nullptr; next != nullptr && *next != '\0'; next = end) {
    kill(getpid(), static_cast<int>(strtol(next, &end, 10)));
    if (*end == ',') ++end;
  }
}

bool Fails(Kind kind) {
  if (control == nullptr || (control->what & kind) == 0) return false;
  if (control->calls++ % control->every != 0) return false;
  ++control->failed;
  errno = control->error;
  return true;
}

// Limits file faults to session files.
bool OfSessions(const char* path) { return std::strstr(path, "ovq-faults") != nullptr; }
bool OfSessions(int fd) {
  char link[64], path[512];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return false;
  path[n] = 0;
  return OfSessions(path);
}
bool IsOn(Kind kind) { return control != nullptr && (control->what & kind) != 0; }

template <class F>
F Next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The C library's own function of this name.
#define NEXT(name) static const auto next = Next<decltype(&name)>(#name)

extern "C" {

void* mmap(void* address, size_t n, int protection, int flags, int fd, off_t offset) noexcept {
  NEXT(mmap);
  if (n >= kLarge && Fails(kMap)) return MAP_FAILED;
  return next(address, n, protection, flags, fd, offset);
}
int mprotect(void* address, size_t n, int protection) noexcept {
  NEXT(mprotect);
  return n >= kLarge && Fails(kProtect) ? -1 : next(address, n, protection);
}
int open(const char* path, int flags, ...) {
  NEXT(open);
  if (IsOn(kOpen) && OfSessions(path) && Fails(kOpen)) return -1;
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return next(path, flags, mode);
}
ssize_t write(int fd, const void* data, size_t n) {
  NEXT(write);
  return IsOn(kWrite) && OfSessions(fd) && Fails(kWrite) ? -1 : next(fd, data, n);
}
ssize_t pwrite(int fd, const void* data, size_t n, off_t offset) {
  NEXT(pwrite);
  return IsOn(kWrite) && OfSessions(fd) && Fails(kWrite) ? -1 : next(fd, data, n, offset);
}
ssize_t writev(int fd, const iovec* parts, int n) {
  NEXT(writev);
  return IsOn(kWrite) && OfSessions(fd) && Fails(kWrite) ? -1 : next(fd, parts, n);
}
int fsync(int fd) {
  NEXT(fsync);
  return Fails(kSync) ? -1 : next(fd);
}
int fdatasync(int fd) {
  NEXT(fdatasync);
  return Fails(kSync) ? -1 : next(fd);
}
int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return Fails(kRename) ? -1 : next(from, to);
}
ssize_t getrandom(void* out, size_t n, unsigned flags) {
  NEXT(getrandom);
  return Fails(kRandom) ? -1 : next(out, n, flags);
}
void* malloc(size_t n) noexcept {
  NEXT(malloc);
  return n >= kLarge && Fails(kAllocate) ? nullptr : next(n);
}
int clock_gettime(clockid_t id, timespec* time) noexcept {
  NEXT(clock_gettime);
  const int result = next(id, time);
  if (result == 0 && id == CLOCK_REALTIME && control != nullptr) time->tv_sec += control->clock;
  return result;
}

}  // extern "C"
