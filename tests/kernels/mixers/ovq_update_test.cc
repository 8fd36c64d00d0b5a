#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/stochastic_rounding.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq::kernels {
namespace {

TEST(CentroidsAt, FollowsEquation17InIntegers) {
  EXPECT_EQ(CentroidsAt(0, 2048), 0);
  EXPECT_EQ(CentroidsAt(128, 2048), 120);
  EXPECT_EQ(CentroidsAt(2048, 2048), 1024);
  EXPECT_EQ(CentroidsAt(32768, 2048), 1927);
  EXPECT_EQ(CentroidsAt(int64_t{1} << 62, 2048), 2047);
}

TEST(LiveSlots, ChangesOnlyAtChunkEnds) {
  const Growth growth = GrowsByChunk(128, 2048);
  EXPECT_EQ(growth.live(127, 2048), 0);
  EXPECT_EQ(growth.live(128, 2048), 120);
  EXPECT_EQ(growth.live(255, 2048), 120);
  const Growth to_cap = GrowsByChunk(128, 2048, /*min_state_size=*/true);
  EXPECT_EQ(to_cap.live(127, 2048), 0);
  EXPECT_EQ(to_cap.live(383, 2048), 256);
  EXPECT_EQ(to_cap.live(384, 300), 300);
  EXPECT_NE(to_cap.name, growth.name);
  EXPECT_EQ(GrowsByToken().live(255, 0), 255);
}

TEST(Assign, FirstChunkMatchesTheRuleByHand) {
  const std::vector<float> score = {1.0f, 0.5f, -0.2f, 0.5f, -0.2f, 0.9f};
  std::vector<int32_t> order(6), assignment(6);
  AssignChunk(score, {}, 0, 4, order, assignment);
  // Lowest first: keys 2 and 4 tie, the lower index wins; then key 1 before its equal, key 3.
  EXPECT_EQ(assignment, (std::vector<int32_t>{0, 3, 1, 0, 2, 0}));
}

TEST(Assign, FirstChunkNeverTakesKeyZero) {
  const std::vector<float> score = {-1.0f, 0.5f, 0.6f};
  std::vector<int32_t> order(3), assignment(3);
  AssignChunk(score, {}, 0, 3, order, assignment);
  EXPECT_EQ(assignment, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Assign, LaterChunkMatchesBruteForce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    const int n = 2 + static_cast<int>(random() % 60);
    const int n_old = 1 + static_cast<int>(random() % 40);
    const int n_new = static_cast<int>(random() % (n + 1));
    std::vector<float> score(n);
    std::vector<int32_t> slot(n), order(n), assignment(n);
    for (int i = 0; i < n; ++i) {
      score[i] = static_cast<float>(random() % 8) / 8;  // many ties
      slot[i] = static_cast<int32_t>(random() % n_old);
    }
    AssignChunk(score, slot, n_old, n_old + n_new, order, assignment);
    for (int i = 0; i < n; ++i) {
      int before = 0;  // keys that come before i
      for (int j = 0; j < n; ++j) before += score[j] < score[i] || (score[j] == score[i] && j < i);
      EXPECT_EQ(assignment[i], before < n_new ? n_old + before : slot[i]);
    }
  }
}

TEST(Assign, SurvivesNaN) {
  const std::vector<float> score = {NAN, 0.1f, NAN, 0.2f};
  const std::vector<int32_t> slot = {0, 0, 0, 0};
  std::vector<int32_t> order(4), assignment(4);
  AssignChunk(score, slot, 5, 7, order, assignment);
  EXPECT_EQ(assignment, (std::vector<int32_t>{0, 5, 0, 6}));
}

TEST(StochasticRounding, KeepsBFloat16ValuesExactly) {
  for (uint32_t random16 : {0u, 1u, 0x8000u, 0xffffu}) {
    for (float x : {0.0f, 1.0f, -3.5f, 0x1.02p-100f}) {
      EXPECT_EQ(ToFloat(Slots<BF16>::Stochastic(x, random16)), x);
    }
  }
}

TEST(StochasticRounding, IsUnbiased) {
  const float x = 1.0f + 0.3f * 0x1p-7f;  // 30% of the way to the next bfloat16
  constexpr int kDraws = 8 * 4096;
  double sum = 0;
  for (int64_t chunk = 0; chunk < kDraws / 8; ++chunk) {
    for (uint32_t bits : RoundingBits({1, 2, 3, false, chunk}, 0)) {
      sum += ToFloat(Slots<BF16>::Stochastic(x, bits));
    }
  }
  // The mean of kDraws Bernoulli batches of 2^-7 has deviation 2^-7 * 0.46 / sqrt(kDraws); 5 sigma.
  EXPECT_NEAR(sum / kDraws, x, 5 * 0x1p-7 * 0.46 / std::sqrt(kDraws));
}

// A mean of many keys rounded to nearest stops moving once a batch is below half a unit in the last
// place; rounded stochastically it follows.
TEST(StochasticRounding, RunningMeanDoesNotStall) {
  constexpr int kKeys = 20000;
  BF16 nearest = RoundToBF16(0.0f), stochastic = nearest;
  for (int i = 1; i <= kKeys; ++i) {
    const float key = i <= kKeys / 2 ? 0.5f : 1.0f;
    const auto merge = [&](float old) { return old + (key - old) / static_cast<float>(i); };
    nearest = RoundToBF16(merge(ToFloat(nearest)));
    RoundRow(std::vector<float>{merge(ToFloat(stochastic))}.data(), 1, {0, 0, 0, false, i},
             SlotRow<BF16>{&stochastic, 1});
  }
  EXPECT_LT(ToFloat(nearest), 0.6f);  // the true mean is 0.75
  EXPECT_NEAR(ToFloat(stochastic), 0.75f, 0.03f);
}

}  // namespace
}  // namespace ovq::kernels
