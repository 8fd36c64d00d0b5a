// The shared memory that decode attention asks for, and the error of a build that gets too little.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/mixers/common/attend.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

class DecodeOccupancy : public testing::Test {
 protected:
  ~DecodeOccupancy() override { simt::SetMostBlocks(32); }

  absl::Status Prepare(int head_dim, DType dtype) {
    AttentionBlocks blocks;
    blocks.shape = {
        .n_heads = 1, .n_kv_heads = 1, .head_dim = head_dim, .value_head_dim = head_dim};
    blocks.dtype = dtype;
    blocks.compute_dtype = dtype == DType::kI8 ? DType::kBF16 : dtype;
    return PrepareAttendCuda(*context_, blocks);
  }

  std::unique_ptr<DeviceContext> context_ = test::MakeContext(Device::kCuda);
};

TEST_F(DecodeOccupancy, ThreeThreadBlocksOfThePapersHeadsRunOnAMultiprocessor) {
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    const cuda::Occupancy paper = cuda::PrepareAttendDecode(*context_, dtype, 128, 128);
    EXPECT_EQ(paper.wanted, 3);
    EXPECT_EQ(paper.blocks, 3);
    const cuda::Occupancy widest = cuda::PrepareAttendDecode(*context_, dtype, 256, 256);
    EXPECT_EQ(widest.wanted, 1);
    EXPECT_EQ(widest.blocks, 1);
    EXPECT_TRUE(Prepare(128, dtype).ok());
  }
}

TEST_F(DecodeOccupancy, AModelIsRefusedWhereFewerRun) {
  simt::SetMostBlocks(2);
  const absl::Status status = Prepare(128, DType::kBF16);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("expected 3 thread blocks of decode attention (head_dim 128)"));
  EXPECT_EQ(Prepare(128, DType::kI8).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Prepare(256, DType::kBF16).ok()) << "of which no more fit";
  EXPECT_TRUE(Prepare(128, DType::kF32).ok()) << "which has a kernel of its own";
}

}  // namespace
}  // namespace ovq::kernels
