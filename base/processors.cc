#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

namespace ovq {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

int CountAffinityProcessors() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return CPU_COUNT(&mask);
  return static_cast<int>(std::thread::hardware_concurrency());  // more than a mask holds
}

double Quotient(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kNoQuota;
}

// Reads "max 100000" or "150000 100000", quota and period in microseconds.
double ReadQuotaVersion2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? Quotient(quota, period) : kNoQuota;
}

// Reads the two files of version 1; a quota of -1 means none.
double ReadQuotaVersion1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
      period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period ? Quotient(quota, period) : kNoQuota;
}

// The smallest quota of the group and all above it. In a container the mount may begin at the group
// itself; the path then names nothing below it.
double GroupQuota(const std::string& mount, std::string group,
                  double (*read_quota)(const std::string&)) {
  double quota = read_quota(mount);
  while (group.size() > 1) {
    quota = std::min(quota, read_quota(mount + group));
    group.resize(group.rfind('/'));
  }
  return quota;
}

}  // namespace

int UsableProcessors(const std::string& root) {
  double quota = kNoQuota;
  std::ifstream groups(root + "proc/self/cgroup");  // lines "ID:CONTROLLERS:PATH"
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',', absl::SkipEmpty());
    const std::string& group = parts[2];
    if (controllers.empty()) {
      quota = std::min(quota, GroupQuota(root + "sys/fs/cgroup", group, &ReadQuotaVersion2));
    } else if (std::ranges::count(controllers, "cpu") > 0) {
      for (const char* const mount : {"sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"}) {
        quota = std::min(quota, GroupQuota(root + mount, group, &ReadQuotaVersion1));
      }
    }
  }
  int processors = std::max(1, CountAffinityProcessors());
  if (quota < processors) processors = std::max(1, static_cast<int>(std::ceil(quota)));
  return processors;
}

}  // namespace ovq
