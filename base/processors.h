// How many processors this process may keep busy.
#pragma once

#include <string>

namespace ovq {

// The smaller of what its affinity mask holds and what its control groups' CPU quota comes to,
// rounded up; 1 at least. Quotas of Linux's control groups, version 2 (cpu.max) and 1
// (cpu.cfs_quota_us), of the process's own group and of all above it. root: in place of "/", for
// tests.
int UsableProcessors(const std::string& root = "/");

}  // namespace ovq
