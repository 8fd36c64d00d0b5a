#include "server/watchdog.h"

#include <gtest/gtest.h>

namespace ovq {
namespace {

using Verdict = StepJudge::Verdict;

class StepJudgeTest : public testing::Test {
 protected:
  Verdict Look(int64_t number, int began, int now) {
    const std::optional<StepInProgress> step = StepInProgress{.number = number, .began = At(began)};
    return judge_.Look(number == 0 ? std::nullopt : step, At(now));
  }
  static SteadyTime At(int seconds) { return SteadyTime(std::chrono::seconds(1000 + seconds)); }

  StepJudge judge_{absl::Seconds(60)};
};

TEST_F(StepJudgeTest, TellsOfALateStepOnceAndOfItsEnd) {
  EXPECT_EQ(Look(0, 0, 0), Verdict::kGood);
  EXPECT_EQ(Look(1, 0, 60), Verdict::kGood);
  EXPECT_EQ(Look(1, 0, 61), Verdict::kHangs);
  EXPECT_EQ(Look(1, 0, 62), Verdict::kHangsStill);
  EXPECT_EQ(Look(2, 63, 64), Verdict::kEnded);
  EXPECT_EQ(Look(2, 63, 65), Verdict::kGood);
  EXPECT_EQ(Look(2, 63, 124), Verdict::kHangs);
  EXPECT_EQ(Look(0, 0, 125), Verdict::kEnded);
  EXPECT_EQ(Look(0, 0, 1000), Verdict::kGood);
}

TEST_F(StepJudgeTest, OneLateStepAfterAnotherAreTwo) {
  EXPECT_EQ(Look(1, 0, 61), Verdict::kHangs);
  EXPECT_EQ(Look(2, 62, 200), Verdict::kHangs);
  EXPECT_EQ(Look(2, 62, 201), Verdict::kHangsStill);
}

TEST_F(StepJudgeTest, WithoutATimeNothingIsLate) {
  judge_ = StepJudge(absl::ZeroDuration());
  EXPECT_EQ(Look(1, 0, 1'000'000), Verdict::kGood);
}

}  // namespace
}  // namespace ovq
