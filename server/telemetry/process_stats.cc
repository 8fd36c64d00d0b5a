#include "server/telemetry/process_stats.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>

#include "absl/time/clock.h"

namespace ovq::server {
namespace {

// The number behind `key` in a file of "key number" lines; 0 without the key.
size_t ReadValue(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    size_t value = 0;
    if (word == key && file >> value) return value;
  }
  return 0;
}

// Taken as soon as the program's own code runs.
const absl::Time kProcessStart = absl::Now();

}  // namespace

double ProcessStartTimeSeconds() {
  return absl::ToDoubleSeconds(kProcessStart - absl::UnixEpoch());
}

size_t AvailableMemoryBytes() {
  size_t available = ReadValue("/proc/meminfo", "MemAvailable:") * 1024;
  // "max" stands for no limit: then the read fails and MemAvailable holds.
  size_t limit = 0;
  size_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit - std::min(used, limit));
  }
  return available;
}

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  stats.cpu_seconds = static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  std::ifstream file("/proc/self/statm");
  size_t virtual_pages = 0;
  size_t resident_pages = 0;
  file >> virtual_pages >> resident_pages;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  stats.resident_bytes = resident_pages * page;
  stats.virtual_bytes = virtual_pages * page;
  std::error_code ignored;
  const std::filesystem::directory_iterator fds("/proc/self/fd", ignored);
  // Without the descriptor that lists them.
  stats.open_fds = std::max<int64_t>(std::distance(begin(fds), end(fds)) - 1, 0);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  stats.threads = static_cast<int64_t>(ReadValue("/proc/self/status", "Threads:"));
  return stats;
}

}  // namespace ovq::server
