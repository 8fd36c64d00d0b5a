// StateMemory on a device whose memory size the test controls.
#include "kernels/common/state_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "server/engine/common/state_pool.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels {
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
  // The released pages suffice, whatever else the device has.
  simt::SetDeviceMemory(gpu.total_bytes - gpu.free_bytes + 4 * kMiB);
  base = memory_.Reserve(64 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 60 * kMiB, 4 * kMiB));
  memory_.Release(base, 64 * kMiB);
}

// A call that committed one group of a session and then found no memory for another makes no use of
// the first, and a shorter one that follows uses a part of it.
TEST_F(StateMemoryOnCuda, APartOfWhatWasCommittedInVainIsCommittedOnce) {
  std::byte* base = memory_.Reserve(64 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 0, 12 * kMiB));
  EXPECT_TRUE(memory_.Commit(base, 0, 4 * kMiB));
  EXPECT_TRUE(memory_.Commit(base, 4 * kMiB, 2 * kMiB));
  const size_t free_bytes = context_->Gpu()->free_bytes;
  EXPECT_TRUE(memory_.Commit(base, 6 * kMiB, 10 * kMiB));
  EXPECT_EQ(context_->Gpu()->free_bytes, free_bytes - 4 * kMiB);
  std::vector<std::byte> bytes(16 * kMiB, std::byte{1});
  memory_.CopyOut(bytes.data(), base, bytes.size());
  EXPECT_EQ(std::ranges::count(bytes, std::byte{0}), std::ssize(bytes));
  memory_.Release(base, 64 * kMiB);
}

// Otherwise other sessions' batches would stall meanwhile.
TEST_F(StateMemoryOnCuda, AReleaseWaitsForNothingAndUnmapsNothing) {
  std::byte* base = memory_.Reserve(64 * kMiB);
  ASSERT_TRUE(memory_.Commit(base, 0, 32 * kMiB));
  std::vector<std::byte> bytes(32 * kMiB, std::byte{7});
  memory_.CopyIn(base, bytes.data(), bytes.size());
  const size_t waits = simt::WaitCount(), unmapped = simt::UnmapCount();
  memory_.Release(base, 64 * kMiB);
  EXPECT_EQ(simt::WaitCount(), waits);
  EXPECT_EQ(simt::UnmapCount(), unmapped);
  // Pages come back zeroed, as many as are needed, before any is made anew.
  const size_t free_bytes = context_->Gpu()->free_bytes;
  base = memory_.Reserve(64 * kMiB);
  ASSERT_TRUE(memory_.Commit(base, 8 * kMiB, 6 * kMiB));
  EXPECT_EQ(simt::UnmapCount(), unmapped + 3);
  EXPECT_EQ(context_->Gpu()->free_bytes, free_bytes);
  bytes.assign(6 * kMiB, std::byte{1});
  memory_.CopyOut(bytes.data(), base + 8 * kMiB, bytes.size());
  EXPECT_EQ(std::ranges::count(bytes, std::byte{0}), std::ssize(bytes));
  memory_.Release(base, 64 * kMiB);
}

TEST_F(StateMemoryOnCuda, NoMemoryForAMappingTakesNothing) {
  std::byte* base = memory_.Reserve(64 * kMiB);
  const size_t free_bytes = context_->Gpu()->free_bytes, unmapped = simt::UnmapCount();
  simt::FailMappings(1);
  EXPECT_FALSE(memory_.Commit(base, 0, 4 * kMiB));
  EXPECT_EQ(context_->Gpu()->free_bytes, free_bytes);
  EXPECT_EQ(simt::UnmapCount(), unmapped);
  EXPECT_TRUE(memory_.Commit(base, 0, 4 * kMiB));
  memory_.Release(base, 64 * kMiB);
}

// The budget has room, the GPU has none: the session is refused, and those that are there go on.
TEST_F(StateMemoryOnCuda, AGpuWithoutPagesRefusesASession) {
  const MixerState layer = {.fixed = {},
                            .growth = GrowsByToken(),
                            .block = StateFields({{"rows", DType::kU32, Shape{kBlockSlots, 512}}})};
  const model::StateLayout layout({layer}, {.max_unbounded_tokens = 20000},
                                  StatePageBytes(*context_));
  engine::StatePool pool(size_t{1} << 30, *context_);
  const auto acquire = [&] { return pool.Acquire(layout, 0, layout.bytes_at(20000, 0)); };
  engine::StateHandle first = *acquire();
  pool.Grow(first, 3000);
  const GpuInfo gpu = *context_->Gpu();
  simt::SetDeviceMemory(gpu.total_bytes - gpu.free_bytes + 2 * kMiB);
  engine::StateHandle second = *acquire();
  errno = ENOENT;  // an earlier call's
  const absl::Status refused = pool.Commit(second, 20000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              testing::MatchesRegex("state memory: the GPU does not give [0-9]+ bytes of it"));
  EXPECT_EQ(pool.Commit(first, 20000).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(first.position, 3000);
  const std::vector<std::byte> bytes(pool.SnapshotBytes(first));
  EXPECT_EQ(pool.Snapshot(first)->size, bytes.size());
  pool.Release(second);
  // The other session's pages suffice for a few tokens.
  EXPECT_TRUE(pool.Commit(first, 3500).ok());
  pool.Release(first);
}

TEST_F(StateMemoryOnCuda, WhatIsNotCommittedCannotBeTouched) {
  std::byte* base = memory_.Reserve(8 * kMiB);
  EXPECT_TRUE(memory_.Commit(base, 2 * kMiB, 2 * kMiB));
  std::byte byte{};
  memory_.CopyOut(&byte, base + 4 * kMiB - 1, 1);
  EXPECT_DEATH(memory_.CopyOut(&byte, base + 4 * kMiB, 1), "");
  EXPECT_DEATH(memory_.CopyOut(&byte, base + 2 * kMiB - 1, 1), "");
  memory_.Release(base, 8 * kMiB);
  std::byte* other = memory_.Reserve(8 * kMiB);
  EXPECT_TRUE(memory_.Commit(other, 0, 2 * kMiB)) << "which takes the page";
  EXPECT_DEATH(memory_.CopyOut(&byte, base + 2 * kMiB, 1), "");
  memory_.Release(other, 8 * kMiB);
}

}  // namespace
}  // namespace ovq::kernels
