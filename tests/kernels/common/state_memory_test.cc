// StateMemory on the host, which keeps small ranges that were released.
#include "kernels/common/state_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

constexpr size_t kKiB = 1024, kMiB = size_t{1} << 20;
constexpr size_t kRange = 64 * kMiB;

bool IsMapped(std::byte* base) {
  unsigned char resident = 0;
  return mincore(base, 1, &resident) == 0;
}

class StateMemoryTest : public testing::Test {
 protected:
  void Write(std::byte* base, size_t offset, size_t bytes) {
    ASSERT_TRUE(memory_.Commit(base, offset, bytes));
    std::memset(base + offset, 7, bytes);
  }
  static void ExpectZero(const std::byte* base, size_t offset, size_t bytes) {
    EXPECT_EQ(std::count(base + offset, base + offset + bytes, std::byte{0}),
              static_cast<std::ptrdiff_t>(bytes));
  }

  std::unique_ptr<DeviceContext> context_ = test::MakeContext(Device::kCpu);
  StateMemory memory_{*context_};
};

TEST_F(StateMemoryTest, ASmallRangeComesBackZeroedAndGrows) {
  std::byte* const base = memory_.Reserve(kRange);
  Write(base, 0, 100 * kKiB);
  Write(base, 8 * kMiB, 4 * kKiB);
  Write(base, 8 * kMiB + 4 * kKiB, 8 * kKiB);
  memory_.Release(base, kRange);
  EXPECT_TRUE(IsMapped(base));
  std::byte* const other = memory_.Reserve(kRange / 2);
  EXPECT_NE(other, base);
  ASSERT_EQ(memory_.Reserve(kRange), base);
  // Less than before, and more.
  ASSERT_TRUE(memory_.Commit(base, 0, 40 * kKiB));
  ASSERT_TRUE(memory_.Commit(base, 40 * kKiB, 160 * kKiB));
  ASSERT_TRUE(memory_.Commit(base, 8 * kMiB, 64 * kKiB));
  ASSERT_TRUE(memory_.Commit(base, 4 * kMiB, 4 * kKiB));
  ExpectZero(base, 0, 200 * kKiB);
  ExpectZero(base, 8 * kMiB, 64 * kKiB);
  ExpectZero(base, 4 * kMiB, 4 * kKiB);
  std::memset(base, 7, 200 * kKiB);
  std::memset(base + 8 * kMiB, 7, 64 * kKiB);
  memory_.Release(base, kRange);
  ASSERT_EQ(memory_.Reserve(kRange), base);
  ASSERT_TRUE(memory_.Commit(base, 0, 200 * kKiB));
  ASSERT_TRUE(memory_.Commit(base, 8 * kMiB, 64 * kKiB));
  ExpectZero(base, 0, 200 * kKiB);
  ExpectZero(base, 8 * kMiB, 64 * kKiB);
  memory_.Release(base, kRange);
  memory_.Release(other, kRange / 2);
}

TEST_F(StateMemoryTest, ALargeRangeGoesBackToTheSystem) {
  std::byte* const base = memory_.Reserve(kRange);
  Write(base, 0, StateMemory::kSmallBytes + 4 * kKiB);
  memory_.Release(base, kRange);
  EXPECT_FALSE(IsMapped(base));
}

TEST_F(StateMemoryTest, ARangeThatNobodyTouchedGoesBackToTheSystem) {
  std::byte* const base = memory_.Reserve(kRange);
  ASSERT_TRUE(memory_.Commit(base, 0, kMiB));
  memory_.Release(base, kRange);
  EXPECT_FALSE(IsMapped(base));
}

TEST_F(StateMemoryTest, AsManyAreKeptAsHaveRoom) {
  std::vector<std::byte*> ranges;
  constexpr size_t kEach = kMiB, kFit = StateMemory::kKeptBytes / kEach;
  for (size_t i = 0; i < 2 * kFit; ++i) {
    ranges.push_back(memory_.Reserve(kRange));
    Write(ranges.back(), kMiB, kEach);
  }
  for (std::byte* const base : ranges) memory_.Release(base, kRange);
  for (size_t i = 0; i < ranges.size(); ++i) EXPECT_EQ(IsMapped(ranges[i]), i < kFit) << i;
  // The last one first: the caches may still have it.
  EXPECT_EQ(memory_.Reserve(kRange), ranges[kFit - 1]);
  memory_.Release(ranges[kFit - 1], kRange);
  // Ranges of another size give way to the size that is asked for.
  std::byte* const other = memory_.Reserve(kRange / 2);
  EXPECT_FALSE(IsMapped(ranges[0]));
  Write(other, 0, kEach);
  memory_.Release(other, kRange / 2);
  EXPECT_EQ(memory_.Reserve(kRange / 2), other);
  memory_.Release(other, kRange / 2);
}

}  // namespace
}  // namespace ovq::kernels
