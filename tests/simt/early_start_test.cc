// Kernels start early where their code waits for those before it, which the GPU alone does not
// tell.
#include <gtest/gtest.h>

#include "kernels/common/cuda/cuda_device.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

TEST(EarlyStart, IsForCodeThatWaits) {
  EXPECT_TRUE(test::MakeContext(Device::kCuda)->cuda().starts_kernels_early);
  simt::SetPtxVersion(80);  // what a GPU runs that is later than all machine code
  EXPECT_FALSE(test::MakeContext(Device::kCuda)->cuda().starts_kernels_early);
  simt::SetPtxVersion(90);
}

}  // namespace
}  // namespace ovq::kernels
