#include "base/clock.h"

#include <gtest/gtest.h>

namespace ovq {
namespace {

constexpr SteadyTime kBegin{std::chrono::hours(1)};

TEST(Clock, TimesFarAwayNeverCome) {
  EXPECT_EQ(After(kBegin, absl::Seconds(5)), kBegin + std::chrono::seconds(5));
  EXPECT_EQ(After(kBegin, -absl::InfiniteDuration()), kBegin);
  EXPECT_EQ(After(kBegin, absl::InfiniteDuration()), kNever);
  EXPECT_EQ(After(kBegin, absl::Hours(24) * 366 * 101), kNever);
}

TEST(Clock, AWallTimeComesAsMuchLaterAsItIsAway) {
  absl::Time wall = absl::FromUnixSeconds(1'700'000'000);
  const Clock clock{.steady = [] { return kBegin; }, .wall = [&] { return wall; }};
  const absl::Time deadline = wall + absl::Seconds(30);
  EXPECT_EQ(clock.ToSteady(deadline), kBegin + std::chrono::seconds(30));
  EXPECT_EQ(clock.ToSteady(wall - absl::Seconds(30)), kBegin);
  EXPECT_EQ(clock.ToSteady(absl::InfiniteFuture()), kNever);
  EXPECT_EQ(clock.ToSteady(absl::InfinitePast()), kBegin);
  EXPECT_EQ(TimeBetween(kBegin, clock.ToSteady(deadline)), absl::Seconds(30));
}

}  // namespace
}  // namespace ovq
