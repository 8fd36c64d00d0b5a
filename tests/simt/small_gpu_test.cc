// GPUs whose thread blocks have less shared memory than the largest have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/mixers/mixer.h"
#include "tests/kernels/mixers/mixer_test_util.h"
#include "tests/simt/simt.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {
namespace {

// Whether a lattice layer with heads of so many slots of 128 channels can be made, or why not.
absl::Status LatticeOnASmallGpu(int n_slots) {
  MixerCase lattice;
  lattice.type = "lattice";
  lattice.section = {{"num_heads", 1}, {"num_slots", n_slots}, {"value_head_dim", 128}};
  return MakeMixer(lattice, *MakeContext(Device::kCuda)).status();
}

TEST(SmallGpu, ALatticeHeadThatDoesNotFitIsAnErrorOfTheLoad) {
  EXPECT_TRUE(LatticeOnASmallGpu(384).ok()) << LatticeOnASmallGpu(384);
  simt::SetMaxSharedBytes(size_t{99} << 10);
  EXPECT_TRUE(LatticeOnASmallGpu(182).ok()) << LatticeOnASmallGpu(182);
  const absl::Status refused = LatticeOnASmallGpu(183);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("expected 101888 bytes of shared memory for a lattice head "
                                 "(num_slots 183, value_head_dim 128)"));
  simt::SetMaxSharedBytes(size_t{227} << 10);
}

}  // namespace
}  // namespace ovq::kernels::test
