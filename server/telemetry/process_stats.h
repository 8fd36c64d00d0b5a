// Figures of this process and its machine, from /proc and the system. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovq::server {

struct ProcessStats {
  double cpu_seconds = 0;  // user and system, all threads
  size_t resident_bytes = 0, virtual_bytes = 0;
  int64_t open_fds = 0, max_fds = 0;  // max: the soft limit
  int64_t threads = 0;
};
ProcessStats ReadProcessStats();
double ProcessStartTimeSeconds();  // since the epoch

}  // namespace ovq::server
