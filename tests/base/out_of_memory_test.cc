// Failed allocations end the process with a message.
#include "base/out_of_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <new>

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

}  // namespace
}  // namespace ovq
