#include "model/ngram_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ovq::model {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::IsEmpty;

std::vector<int32_t> RandomTokens(size_t n, uint32_t seed, int32_t vocab = 1'000'000) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return tokens;
}
std::vector<int32_t> ToVector(const DraftTokens& draft) {
  return {draft.tokens.begin(), draft.tokens.end()};
}

TEST(NgramDrafter, NothingIsProposedWhereNothingRepeats) {
  NgramDrafter drafter;
  EXPECT_THAT(ToVector(drafter.Propose(5)), IsEmpty());
  drafter.Add(RandomTokens(1000, 1));
  EXPECT_THAT(ToVector(drafter.Propose(5)), IsEmpty());
}

TEST(NgramDrafter, WhatFollowedIsProposed) {
  NgramDrafter drafter;
  drafter.Add(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 9, 1, 2});
  EXPECT_THAT(ToVector(drafter.Propose(3)), ElementsAre(3, 4, 5));
  EXPECT_THAT(ToVector(drafter.Propose(0)), IsEmpty());
  EXPECT_THAT(ToVector(drafter.Propose(-4)), IsEmpty());
  drafter.Add(3);
  EXPECT_THAT(ToVector(drafter.Propose(2)), ElementsAre(4, 5));
  drafter.Add(7);
  EXPECT_THAT(ToVector(drafter.Propose(2)), IsEmpty()) << "3, 7 has not been";
}

TEST(NgramDrafter, TheLongestRepeatCountsAndThenTheLast) {
  NgramDrafter drafter;
  drafter.Add(std::vector<int32_t>{1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4});
  EXPECT_THAT(ToVector(drafter.Propose(1)), ElementsAre(50));
  NgramDrafter other;
  other.Add(std::vector<int32_t>{3, 4, 50, 9, 3, 4, 60, 8, 3, 4});
  EXPECT_THAT(ToVector(other.Propose(1)), ElementsAre(60));
}

TEST(NgramDrafter, APeriodGoesOnBeyondTheEnd) {
  NgramDrafter drafter;
  drafter.Add(std::vector<int32_t>{5, 1, 2, 3, 1, 2, 3});
  EXPECT_THAT(ToVector(drafter.Propose(7)), ElementsAre(1, 2, 3, 1, 2, 3, 1));
  EXPECT_EQ(drafter.Propose(1000).tokens.size(),
            static_cast<size_t>(NgramDrafter::kMaxDraftTokens));
}

// Probabilities follow from how earlier drafts did.
TEST(NgramDrafter, ChancesFollowFromTheRecord) {
  const std::vector<int32_t> text = RandomTokens(400, 2);
  NgramDrafter copied;
  for (int i = 0; i < 3; ++i) copied.Add(text);
  EXPECT_THAT(copied.Propose(20).probabilities, Each(Gt(0.9f)));
  NgramDrafter coins;  // every pair has occurred and predicts nothing
  coins.Add(RandomTokens(5000, 3, 8));
  ASSERT_FALSE(coins.Propose(1).probabilities.empty());
  EXPECT_LT(coins.Propose(1).probabilities[0], 0.3f);
  EXPECT_GT(coins.Propose(1).probabilities[0], 0.01f);
}

TEST(NgramDrafter, OnlyTheLastTokensAreKept) {
  const std::vector<int32_t> text = RandomTokens(40, 4);
  NgramDrafter drafter;
  drafter.Add(text);
  for (uint32_t i = 0; i < 4; ++i) drafter.Add(RandomTokens(NgramDrafter::kWindow, 5 + i));
  drafter.Add(std::span(text).first(20));
  EXPECT_THAT(ToVector(drafter.Propose(1)), IsEmpty()) << "it is too long ago";
  drafter.Add(std::span(text).subspan(20));
  for (uint32_t i = 0; i < 8; ++i) drafter.Add(RandomTokens(NgramDrafter::kWindow / 16, 15 + i));
  drafter.Add(std::span(text).first(20));
  EXPECT_THAT(ToVector(drafter.Propose(3)), ElementsAre(text[20], text[21], text[22]));
}

}  // namespace
}  // namespace ovq::model
