#include "base/machine.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ovq {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

int CountAffinityProcessors() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return CPU_COUNT(&mask);
  return static_cast<int>(std::thread::hardware_concurrency());  // more than a mask holds
}

// Reads a group's quota and period in microseconds: version 2 has both in one file ("max 100000" or
// "150000 100000"), version 1 each in its own, where -1 means no quota.
double ReadQuota(const std::string& folder, bool is_version_2) {
  std::ifstream file(folder + (is_version_2 ? "/cpu.max" : "/cpu.cfs_quota_us"));
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(file >> quota && (is_version_2 ? file : period_file) >> period)) return kNoQuota;
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

// The number behind `key` in a file of lines "KEY NUMBER ..."; 0 without the key.
size_t ReadValue(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    size_t value = 0;
    if (word == key && file >> value) return value;
  }
  return 0;
}

// The number in a file; unset if it has none, such as "max".
std::optional<size_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

struct GroupFolder {
  std::string path;
  bool is_version_2;
};

// Adds the folders of a group and of all above it. In a container the mount may begin at the group
// itself; the path then names nothing below it.
void AddFolders(const std::string& mount, std::string group, bool is_version_2,
                std::vector<GroupFolder>& folders) {
  folders.push_back({mount, is_version_2});
  while (group.size() > 1) {
    folders.push_back({mount + group, is_version_2});
    group.resize(group.rfind('/'));
  }
}

// The folders of this process's control groups that may limit `controller`, and of all above them.
// Some do not exist.
std::vector<GroupFolder> GroupFolders(const std::string& root, std::string_view controller) {
  std::vector<GroupFolder> folders;
  std::ifstream groups(root + "proc/self/cgroup");  // lines "ID:CONTROLLERS:PATH"
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',', absl::SkipEmpty());
    const std::string mounts = root + "sys/fs/cgroup", &group = parts[2];
    if (controllers.empty()) {
      AddFolders(mounts, group, true, folders);
    } else if (std::ranges::count(controllers, controller) > 0) {
      // It is mounted by its name, or by those of all controllers of its hierarchy.
      AddFolders(absl::StrCat(mounts, "/", std::string(controller)), group, false, folders);
      AddFolders(absl::StrCat(mounts, "/", parts[1]), group, false, folders);
    }
  }
  return folders;
}

}  // namespace

int UsableProcessors(const std::string& root) {
  double quota = kNoQuota;
  for (const GroupFolder& group : GroupFolders(root, "cpu")) {
    quota = std::min(quota, ReadQuota(group.path, group.is_version_2));
  }
  int processors = std::max(1, CountAffinityProcessors());
  if (quota < processors) processors = std::max(1, static_cast<int>(std::ceil(quota)));
  return processors;
}

MemoryBytes UsableMemory(const std::string& root) {
  const std::string machine = root + "proc/meminfo";  // in KiB
  MemoryBytes bytes = {.total = ReadValue(machine, "MemTotal:") * 1024,
                       .available = ReadValue(machine, "MemAvailable:") * 1024};
  for (const auto& [folder, is_version_2] : GroupFolders(root, "memory")) {
    const auto limit =
        ReadNumber(folder + (is_version_2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used =
        ReadNumber(folder + (is_version_2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used) continue;
    const size_t files =
        ReadValue(folder + "/memory.stat", is_version_2 ? "inactive_file" : "total_inactive_file");
    const size_t needed = *used - std::min(files, *used);
    bytes.total = std::min(bytes.total, *limit);
    bytes.available = std::min(bytes.available, *limit - std::min(needed, *limit));
  }
  return bytes;
}

clockid_t ThreadClock() {
  clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
  pthread_getcpuclockid(pthread_self(), &clock);
  return clock;
}

absl::Duration ThreadTime(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return absl::DurationFromTimespec(time);
}

ProcessorWait::ProcessorWait(int thread)
    : file_(open(absl::StrCat("/proc/self/task/", thread, "/schedstat").c_str(),
                 O_RDONLY | O_CLOEXEC)) {
  last_ = Total().value_or(absl::ZeroDuration());
}

ProcessorWait::~ProcessorWait() {
  if (file_ >= 0) close(file_);
}

std::optional<absl::Duration> ProcessorWait::Since() {
  const std::optional<absl::Duration> now = Total();
  if (!now) return std::nullopt;
  const absl::Duration since = *now - last_;
  last_ = *now;
  return since;
}

// The file has the nanoseconds on a processor, those of waiting for one, and a count.
std::optional<absl::Duration> ProcessorWait::Total() const {
  std::array<char, 128> text;
  const ssize_t n = file_ < 0 ? -1 : pread(file_, text.data(), text.size(), 0);
  if (n <= 0) return std::nullopt;
  std::string_view rest(text.data(), static_cast<size_t>(n));
  const size_t begin = rest.find(' ');
  if (begin == std::string_view::npos) return std::nullopt;
  rest = rest.substr(begin + 1);
  rest = rest.substr(0, rest.find(' '));
  int64_t nanoseconds = 0;
  if (!absl::SimpleAtoi(absl::string_view(rest.data(), rest.size()), &nanoseconds)) {
    return std::nullopt;
  }
  return absl::Nanoseconds(nanoseconds);
}

}  // namespace ovq
