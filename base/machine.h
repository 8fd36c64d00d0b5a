// The processors and the memory that this process may use, and what its threads have of processors.
#pragma once

#include <cstddef>
#include <ctime>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace ovq {

// The smaller of the affinity mask's processors and the control groups' CPU quota, rounded up; at
// least 1. Quotas are those of Linux control groups version 2 (cpu.max) and 1 (cpu.cfs_quota_us),
// of the process's own group and of all above it. root: replaces "/" in tests.
int UsableProcessors(const std::string& root = "/");

struct MemoryBytes {
  size_t total = 0;
  size_t available = 0;  // without swapping
};
// The machine's memory, or less where a control group has less: the limits (version 2: memory.max,
// 1: memory.limit_in_bytes) of the process's own group and of all above it. Of a group that is
// available which it does not use, pages of files aside that the system would take back first.
// 0 where the system does not tell. root: replaces "/" in tests.
MemoryBytes UsableMemory(const std::string& root = "/");

// The clock of the calling thread's processor time, which other threads may read while it lives.
clockid_t ThreadClock();
// The processor time that a thread has used since it began.
absl::Duration ThreadTime(clockid_t clock = CLOCK_THREAD_CPUTIME_ID);

// The time for which a thread of this process could have run but had no processor: others had it,
// or the process had used up its quota.
class ProcessorWait {
 public:
  explicit ProcessorWait(int thread);  // its gettid()
  ~ProcessorWait();
  ProcessorWait(const ProcessorWait&) = delete;
  ProcessorWait& operator=(const ProcessorWait&) = delete;

  // Since the last call, or the object's making. Unset where the system does not tell.
  std::optional<absl::Duration> Since();

 private:
  std::optional<absl::Duration> Total() const;

  const int file_;  // of the thread in /proc, -1 where there is none
  absl::Duration last_;
};

}  // namespace ovq
