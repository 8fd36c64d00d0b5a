// The number of processors this process may keep busy.
#pragma once

#include <string>

namespace ovq {

// The smaller of the affinity mask's processors and the control groups' CPU quota, rounded up; at
// least 1. Quotas are those of Linux control groups version 2 (cpu.max) and 1 (cpu.cfs_quota_us),
// of the process's own group and of all above it. root: replaces "/" in tests.
int UsableProcessors(const std::string& root = "/");

}  // namespace ovq
