// Failed allocations end the process with a message, except where they may fail.
#include "base/out_of_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <new>

namespace ovq {
namespace {

constexpr size_t kMuch = size_t{1} << 40;  // bytes, more than any machine gives

void* Allocate(bool may_fail) {
  EndWhenOutOfMemory();
  rlimit limit = {};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = size_t{1} << 34;
  setrlimit(RLIMIT_DATA, &limit);
  if (!may_fail) return ::operator new(kMuch);
  const AllocationsMayFail scope;
  return ::operator new(kMuch, std::nothrow);
}

class OutOfMemoryDeathTest : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer without memory ends the process";
#endif
  }
};

TEST_F(OutOfMemoryDeathTest, EndsTheProcess) {
  EXPECT_EXIT(Allocate(false), testing::ExitedWithCode(1), "out of memory: the system refused");
}

TEST_F(OutOfMemoryDeathTest, ButNotWhereAllocationsMayFail) {
  EXPECT_EXIT(_exit(Allocate(true) == nullptr ? 7 : 8), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace ovq
