#include "server/process_stats.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace ovq {
namespace {

// The number behind `key` in a file of "key number" lines; 0 if there is none.
size_t ReadValue(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    size_t value = 0;
    if (word == key && file >> value) return value;
  }
  return 0;
}

}  // namespace

size_t AvailableMemoryBytes() {
  size_t available = ReadValue("/proc/meminfo", "MemAvailable:") * 1024;
  // "max" where there is no limit: then the read fails and MemAvailable stands.
  size_t limit = 0;
  size_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit - std::min(used, limit));
  }
  return available;
}

size_t ResidentMemoryBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total_pages = 0;
  size_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

double ProcessStartTimeSeconds() {
  // Field 22 of /proc/self/stat: clock ticks after boot. The second field, the program's name in
  // parentheses, may hold blanks.
  std::ifstream file("/proc/self/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  size_t at = name_end + 1;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const double ticks = std::strtod(text.c_str() + at, nullptr);
  return static_cast<double>(ReadValue("/proc/stat", "btime")) +
         ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace ovq
