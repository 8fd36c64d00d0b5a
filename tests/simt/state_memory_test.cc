// What only a device whose memory a test may set can show of StateMemory.
#include "kernels/common/state_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class StateMemoryOnCuda : public testing::Test {
 protected:
  ~StateMemoryOnCuda() override { simt::SetDeviceMemory(size_t{8} << 30); }

  std::unique_ptr<DeviceContext> context_ = test::MakeContext(Device::kCuda);
  StateMemory memory_{*context_};
};

TEST_F(StateMemoryOnCuda, ExhaustionTakesNothing) {
  const GpuInfo gpu = *context_->Gpu();
  simt::SetDeviceMemory(gpu.total_bytes - gpu.free_bytes + 7 * kMiB);
  std::byte* base = memory_.Reserve(64 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 0, 4 * kMiB));
  EXPECT_FALSE(memory_.Commit(base, 4 * kMiB, 4 * kMiB));
  EXPECT_TRUE(memory_.Commit(base, 4 * kMiB, 2 * kMiB)) << "the one page that there was";
  EXPECT_FALSE(memory_.Commit(base, 4 * kMiB, 4 * kMiB)) << "it has the first of these now";
  simt::SetDeviceMemory(gpu.total_bytes - gpu.free_bytes + 8 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 4 * kMiB, 4 * kMiB));
  std::vector<std::byte> bytes(4 * kMiB, std::byte{1});
  memory_.CopyOut(bytes.data(), base + 4 * kMiB, bytes.size());
  EXPECT_EQ(std::ranges::count(bytes, std::byte{0}), std::ssize(bytes));
  memory_.Release(base, 64 * kMiB);
  // What was given back suffices, whatever else the device has.
  simt::SetDeviceMemory(gpu.total_bytes - gpu.free_bytes + 4 * kMiB);
  base = memory_.Reserve(64 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 60 * kMiB, 4 * kMiB));
  memory_.Release(base, 64 * kMiB);
}

TEST_F(StateMemoryOnCuda, WhatIsNotCommittedCannotBeTouched) {
  std::byte* base = memory_.Reserve(8 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 2 * kMiB, 2 * kMiB));
  std::byte byte{};
  memory_.CopyOut(&byte, base + 4 * kMiB - 1, 1);
  EXPECT_DEATH(memory_.CopyOut(&byte, base + 4 * kMiB, 1), "");
  EXPECT_DEATH(memory_.CopyOut(&byte, base + 2 * kMiB - 1, 1), "");
  memory_.Release(base, 8 * kMiB);
  EXPECT_DEATH(memory_.CopyOut(&byte, base + 2 * kMiB, 1), "");
}

}  // namespace
}  // namespace ovq
