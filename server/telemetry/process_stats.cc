#include "server/telemetry/process_stats.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/time/clock.h"

namespace ovq::server {
namespace {

int64_t CountEntries(const char* folder) {
  std::error_code ignored;
  const std::filesystem::directory_iterator entries(folder, ignored);
  return std::distance(begin(entries), end(entries));
}

// Taken as soon as the program's own code runs.
const absl::Time kProcessStart = absl::Now();

}  // namespace

double ProcessStartTimeSeconds() {
  return absl::ToDoubleSeconds(kProcessStart - absl::UnixEpoch());
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
  // Without the descriptor that lists them.
  stats.open_fds = std::max<int64_t>(CountEntries("/proc/self/fd") - 1, 0);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  stats.threads = CountEntries("/proc/self/task");
  return stats;
}

}  // namespace ovq::server
