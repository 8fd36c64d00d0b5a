#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>

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

bool Lists(std::string_view controllers, std::string_view name) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == name) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

int UsableProcessors(const std::string& root) {
  double quota = kNoQuota;
  std::ifstream groups(root + "proc/self/cgroup");  // lines "ID:CONTROLLERS:PATH"
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      quota = std::min(quota, GroupQuota(root + "sys/fs/cgroup", group, &ReadQuotaVersion2));
    } else if (Lists(controllers, "cpu")) {
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
