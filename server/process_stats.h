// Memory and start time of this process and its machine, from /proc. Any thread.
#pragma once

#include <cstddef>

namespace ovq {

// What can still be allocated without swapping: MemAvailable, or less under a cgroup's limit.
size_t AvailableMemoryBytes();
size_t ResidentMemoryBytes();
double ProcessStartTimeSeconds();  // since the epoch

}  // namespace ovq
