// Tests of CUDA skip where there is no device. Here the executor is one, so none may skip.
#include <gtest/gtest.h>

#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

TEST(CudaHost, HasItsDevice) { EXPECT_EQ(WhyNoDevice(Device::kCuda), ""); }

}  // namespace
}  // namespace ovq::kernels::test
