// Properties of the fold of split attention that only the executor can show: the number of fences,
// and that any thread block may be the last.
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/mixers/attend_sessions.h"
#include "tests/simt/simt.h"

namespace ovq::kernels {
namespace {

using test::AttendConfig;
using test::Sessions;

class AttendFold : public testing::TestWithParam<DType> {
 protected:
  ~AttendFold() override { simt::SetOrder(simt::Order::kAlternate); }
};

TEST_P(AttendFold, TakesAFenceForEachSegmentAndOneForTheLast) {
  const AttendConfig config = {.name = "nine segments",
                               .n_heads = 2,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .value_head_dim = 16,
                               .dtype = GetParam(),
                               .compute_dtype = test::ComputeFor(GetParam()),
                               .wave_span = 64,
                               .n_slots = 2048,
                               .from_span = true,
                               .probe = true};
  const std::unique_ptr<DeviceContext> context = test::MakeContext(Device::kCuda);
  Sessions sessions(config, *context, /*end=*/64);
  for (const int64_t start : {3, 60, 17}) sessions.Add(start, 1);
  sessions.Run(1, cuda::Split::kNever);
  std::vector<std::vector<float>> expected;
  for (const Sessions::Session& session : sessions.list()) expected.push_back(session.out);

  for (const simt::Order order : {simt::Order::kAscending, simt::Order::kDescending}) {
    simt::SetOrder(order);
    sessions.Restart();
    const size_t before = simt::FenceCount();
    sessions.Run(1, cuda::Split::kAlways);
    constexpr size_t kTiles = 3 * 2, kSegments = 9;
    EXPECT_EQ(simt::FenceCount() - before, kTiles * (kSegments + 1));
    for (size_t s = 0; s < expected.size(); ++s) {
      test::AssertSameBits(sessions.list()[s].out, expected[s], "session " + std::to_string(s));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttendFold, testing::Values(DType::kF32, DType::kBF16, DType::kI8),
                         [](const auto& info) { return DTypeName(info.param); });

}  // namespace
}  // namespace ovq::kernels
