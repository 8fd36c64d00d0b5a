// The cap of OVQ_MAX_ISA. tests/CMakeLists.txt runs these once more for some of its values.
#include "kernels/common/instruction_sets.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/ops/matmul_device.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

TEST(InstructionSets, HaveNames) {
  EXPECT_EQ(*ParseInstructionSet("baseline"), InstructionSet::kBaseline);
  EXPECT_EQ(*ParseInstructionSet("avx2"), InstructionSet::kAvx2);
  EXPECT_EQ(*ParseInstructionSet("avx2_vnni"), InstructionSet::kAvx2Vnni);
  EXPECT_EQ(*ParseInstructionSet("avx512_bf16"), InstructionSet::kAvx512Bf16);
  EXPECT_EQ(*ParseInstructionSet("amx"), InstructionSet::kAmx);
  for (const char* wrong : {"", "AVX2", "avx2 ", "sse"}) {
    const absl::Status status = ParseInstructionSet(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "OVQ_MAX_ISA: expected one of baseline, avx2, avx2_vnni, avx512, avx512_vnni, "
              "avx512_bf16, amx, got '" +
                  std::string(wrong) + "'");
  }
}

TEST(InstructionSets, StayBelowTheCap) {
  const InstructionSet cap = MaxInstructionSet();
  for (const int64_t target : test::HighwayTargets()) {
    const std::string name = test::HighwayTargetName(target);
    if (name.starts_with("AVX3")) {
      EXPECT_GE(cap, InstructionSet::kAvx512);
    }
    if (name.starts_with("AVX3_")) {
      EXPECT_GE(cap, InstructionSet::kAvx512Vnni);
    }
    if (name == "AVX2") {
      EXPECT_GE(cap, InstructionSet::kAvx2);
    }
  }
  if (cap < InstructionSet::kAvx2Vnni) {
    EXPECT_FALSE(HasAvxVnni());
  }
  auto context = test::MakeContext(Device::kCpu, 1);
  const Int8Weights weights{64, 64, std::vector<int8_t>(64 * 64, 1), std::vector<float>(64, 1)};
  const std::optional<cpu::Int8Sums> sums = cpu::MakeOneDnnSums(*context, weights);
  if (cap < InstructionSet::kAvx512Vnni) {
    EXPECT_FALSE(sums);
  }
  const std::string best = test::HighwayTargetName(test::HighwayTargets().front());
  std::string kernel = "products of 16 bits";
  if (best == "AVX2") kernel = HasAvxVnni() ? "AVX-VNNI" : "AVX2";
  if (best == "NEON" && HasNeonDotProducts()) kernel = "NEON dot products";
  EXPECT_EQ(cpu::MakeSimdSums(weights).kernel, kernel);
}

}  // namespace
}  // namespace ovq::kernels
