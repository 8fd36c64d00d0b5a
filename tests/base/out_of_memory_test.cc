// Failed allocations and refused threads end the process with a message.
#include "base/out_of_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <new>
#include <thread>

namespace ovq {
namespace {

constexpr size_t kMuch = size_t{1} << 40;  // bytes, more than any machine gives

void Allocate() {
  EndWhenOutOfMemory();
  rlimit limit = {};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = size_t{1} << 34;
  setrlimit(RLIMIT_DATA, &limit);
  ::operator delete(::operator new(kMuch));
}

// Nothing catches what it throws.
void StartThread() noexcept {
  EndWhenOutOfMemory();
  rlimit limit = {};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = 0;  // no memory for another stack
  setrlimit(RLIMIT_AS, &limit);
  std::thread([] {}).join();
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
  EXPECT_EXIT(Allocate(), testing::ExitedWithCode(1), "out of memory: the system refused");
}

TEST_F(OutOfMemoryDeathTest, ARefusedThreadEndsTheProcessWithTheReason) {
  EXPECT_EXIT(StartThread(), testing::ExitedWithCode(1),
              "the system refused a request of this process: Resource temporarily unavailable");
}

}  // namespace
}  // namespace ovq
