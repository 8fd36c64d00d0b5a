#include "base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>

namespace ovq {
namespace {

int MaskSize() {
  cpu_set_t mask;
  sched_getaffinity(0, sizeof(mask), &mask);
  return CPU_COUNT(&mask);
}

class Processors : public testing::Test {
 protected:
  Processors() {
    std::string name = (std::filesystem::temp_directory_path() / "ovq_cpus_XXXXXX").string();
    root_ = std::string(mkdtemp(name.data())) + "/";
  }
  ~Processors() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root_;
};

TEST_F(Processors, MaskWithoutQuota) {
  EXPECT_EQ(UsableProcessors(root_), MaskSize());
  Write("proc/self/cgroup", "0::/a.slice/b.service\n");
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
  EXPECT_EQ(UsableProcessors(root_), MaskSize());
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "6400000 100000\n");
  EXPECT_EQ(UsableProcessors(root_), std::min(64, MaskSize()));
}

TEST_F(Processors, OneOfTheMaskIsOne) {
  cpu_set_t before, one;
  sched_getaffinity(0, sizeof(before), &before);
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableProcessors(root_), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

TEST_F(Processors, QuotaOfTheGroupOrOfOneAboveIt) {
  Write("proc/self/cgroup", "0::/a.slice/b.service\n");
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "50000 100000\n");
  EXPECT_EQ(UsableProcessors(root_), 1);
  Write("sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/a.slice/cpu.max", "100000 100000\n");
  EXPECT_EQ(UsableProcessors(root_), 1);
}

TEST_F(Processors, QuotaIsRoundedUp) {
  if (MaskSize() < 2) GTEST_SKIP() << "needs two processors";
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "100001 100000\n");
  EXPECT_EQ(UsableProcessors(root_), 2);
}

TEST_F(Processors, QuotaWhereTheMountBeginsAtTheGroup) {
  Write("proc/self/cgroup", "0::/kubepods/pod7/c1\n");  // a path of the host, missing here
  Write("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(UsableProcessors(root_), 1);
}

TEST_F(Processors, VersionOne) {
  Write("proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "100000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(UsableProcessors(root_), 1);
  Write("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(UsableProcessors(root_), MaskSize());
}

class Memory : public Processors {
 protected:
  static constexpr size_t kGib = size_t{1} << 30;
  Memory() {
    Write("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n");
  }

  void ExpectGib(double total, double available) {
    const MemoryBytes bytes = UsableMemory(root_);
    EXPECT_EQ(bytes.total, static_cast<size_t>(total * kGib));
    EXPECT_EQ(bytes.available, static_cast<size_t>(available * kGib));
  }
  void WriteGroup(const std::string& folder, const std::string& limit, size_t used) {
    Write(folder + "/memory.max", limit + "\n");
    Write(folder + "/memory.current", std::to_string(used) + "\n");
  }
};

TEST_F(Memory, OfTheMachineWithoutALimit) {
  ExpectGib(8, 6);
  Write("proc/self/cgroup", "0::/a.slice/b.service\n");
  WriteGroup("sys/fs/cgroup/a.slice/b.service", "max", 5 * kGib);
  ExpectGib(8, 6);
  WriteGroup("sys/fs/cgroup/a.slice/b.service", std::to_string(100 * kGib), kGib);
  ExpectGib(8, 6);
}

TEST_F(Memory, LimitOfTheGroupOrOfOneAboveIt) {
  Write("proc/self/cgroup", "0::/a.slice/b.service\n");
  WriteGroup("sys/fs/cgroup/a.slice/b.service", std::to_string(4 * kGib), kGib);
  ExpectGib(4, 3);
  WriteGroup("sys/fs/cgroup/a.slice", std::to_string(3 * kGib), 2 * kGib);
  ExpectGib(3, 1);
}

TEST_F(Memory, LimitWhereTheMountBeginsAtTheGroup) {
  Write("proc/self/cgroup", "0::/kubepods/pod7/c1\n");  // a path of the host, missing here
  WriteGroup("sys/fs/cgroup", std::to_string(2 * kGib), 3 * kGib);
  ExpectGib(2, 0);
}

TEST_F(Memory, PagesOfFilesThatAreNotInUseAreAvailable) {
  Write("proc/self/cgroup", "0::/\n");
  WriteGroup("sys/fs/cgroup", std::to_string(4 * kGib), 4 * kGib);
  Write("sys/fs/cgroup/memory.stat",
        "anon 1\nactive_file 5\ninactive_file " + std::to_string(kGib) + "\n");
  ExpectGib(4, 1);
}

TEST_F(Memory, VersionOne) {
  Write("proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", std::to_string(2 * kGib) + "\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", std::to_string(kGib) + "\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(kGib / 2) + "\n");
  ExpectGib(2, 1.5);
  // No limit.
  Write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
  ExpectGib(8, 6);
}

TEST(UsableMemory, OfThisMachine) {
  const MemoryBytes bytes = UsableMemory();
  EXPECT_GT(bytes.available, size_t{1} << 20);
  EXPECT_LE(bytes.available, bytes.total);
}

void UseFor(absl::Duration time) {
  const absl::Duration begin = ThreadTime();
  while (ThreadTime() - begin < time) {
  }
}

TEST(ThreadTime, CountsWorkAndNotSleep) {
  const absl::Duration begin = ThreadTime();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(ThreadTime() - begin, absl::Milliseconds(40));
  UseFor(absl::Milliseconds(50));
  EXPECT_GE(ThreadTime() - begin, absl::Milliseconds(50));
}

// Two threads want one processor.
TEST(ProcessorWait, IsTheTimeThatOthersHad) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &all)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  std::optional<absl::Duration> waited;
  std::latch both(2);  // a thread may begin late
  const auto work = [&one, &both](std::optional<absl::Duration>* result) {
    sched_setaffinity(0, sizeof(one), &one);
    ProcessorWait wait(gettid());
    both.arrive_and_wait();
    UseFor(absl::Milliseconds(100));
    *result = wait.Since();
  };
  std::optional<absl::Duration> others;
  std::thread other(work, &others);
  std::thread(work, &waited).join();
  other.join();
  if (!waited) GTEST_SKIP() << "the system does not tell (/proc/thread-self/schedstat)";
  EXPECT_GE(std::max(*waited, *others), absl::Milliseconds(50));
}

}  // namespace
}  // namespace ovq
