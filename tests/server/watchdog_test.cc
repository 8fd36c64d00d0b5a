#include "server/watchdog.h"

#include <gtest/gtest.h>

namespace ovq::server {
namespace {

using Verdict = HangDetector::Verdict;

class HangDetectorTest : public testing::Test {
 protected:
  Verdict Check(int64_t number, int began, int now) {
    const std::optional<engine::IterationInProgress> step =
        engine::IterationInProgress{.number = number, .began = At(began)};
    return judge_.Check(number == 0 ? std::nullopt : step, At(now));
  }
  static SteadyTime At(int seconds) { return SteadyTime(std::chrono::seconds(1000 + seconds)); }

  HangDetector judge_{absl::Seconds(60)};
};

TEST_F(HangDetectorTest, ReportsAHangOnceAndItsEnd) {
  EXPECT_EQ(Check(0, 0, 0), Verdict::kGood);
  EXPECT_EQ(Check(1, 0, 60), Verdict::kGood);
  EXPECT_EQ(Check(1, 0, 61), Verdict::kHangs);
  EXPECT_EQ(Check(1, 0, 62), Verdict::kHangsStill);
  EXPECT_EQ(Check(2, 63, 64), Verdict::kEnded);
  EXPECT_EQ(Check(2, 63, 65), Verdict::kGood);
  EXPECT_EQ(Check(2, 63, 124), Verdict::kHangs);
  EXPECT_EQ(Check(0, 0, 125), Verdict::kEnded);
  EXPECT_EQ(Check(0, 0, 1000), Verdict::kGood);
}

TEST_F(HangDetectorTest, TwoHangsInARowAreReportedTwice) {
  EXPECT_EQ(Check(1, 0, 61), Verdict::kHangs);
  EXPECT_EQ(Check(2, 62, 200), Verdict::kHangs);
  EXPECT_EQ(Check(2, 62, 201), Verdict::kHangsStill);
}

TEST_F(HangDetectorTest, WithoutATimeNothingIsLate) {
  judge_ = HangDetector(absl::ZeroDuration());
  EXPECT_EQ(Check(1, 0, 1'000'000), Verdict::kGood);
}

}  // namespace
}  // namespace ovq::server
