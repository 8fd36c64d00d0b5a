#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "server/engine/batch_planner.h"

namespace ovq {
namespace {

const std::vector<int32_t> kTokens(100'000, 1);

StepSequence Prefilling(int64_t n_tokens, int64_t order, const char* client = "") {
  return {.tokens = std::span(kTokens).first(static_cast<size_t>(n_tokens)),
          .order = order,
          .client = client};
}
StepSequence Decoding(int64_t order, const char* client = "") {
  StepSequence sequence = Prefilling(1, order, client);
  sequence.decoding = true;
  return sequence;
}
StepSequence Paused(int64_t order) {
  StepSequence sequence = Decoding(order);
  sequence.paused = true;
  return sequence;
}
StepSequence Read(StepSequence sequence, int64_t consumed) {
  sequence.consumed = consumed;
  return sequence;
}

// --- one client ---

struct PlanCase {
  const char* name;
  std::vector<StepSequence> sequences;
  int32_t max_rows;
  int64_t turn;
  std::vector<PlanItem> plan;
};

void PrintTo(const PlanCase& c, std::ostream* os) { *os << c.name; }

class PlanStepTest : public testing::TestWithParam<PlanCase> {};

TEST_P(PlanStepTest, Plan) {
  const PlanCase& c = GetParam();
  const std::vector<PlanItem> plan = PlanBatch(c.sequences, c.max_rows, c.turn);
  ASSERT_EQ(plan.size(), c.plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].id, c.plan[i].id) << i;
    EXPECT_EQ(plan[i].n_rows, c.plan[i].n_rows) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, PlanStepTest,
    testing::Values(
        PlanCase{"nothing", {}, 8, 0, {}},
        PlanCase{"paused sequences get no row", {Paused(0), Decoding(1)}, 8, 0, {{1, 1}}},
        PlanCase{"only paused", {Paused(0)}, 8, 3, {}},
        PlanCase{"decoding goes first, prefill takes the rest",
                 {Prefilling(100, 0), Decoding(1), Decoding(2)},
                 16,
                 0,
                 {{1, 1}, {2, 1}, {0, 14}}},
        PlanCase{"oldest prompt first, the next one gets what is left",
                 {Prefilling(10, 7), Prefilling(5, 3), Prefilling(9, 5)},
                 16,
                 0,
                 {{1, 5}, {2, 9}, {0, 2}}},
        PlanCase{"a prompt that had its turn is behind those that had none",
                 {Read(Prefilling(900, 0), kPromptTurn), Prefilling(700, 1)},
                 400,
                 0,
                 {{1, 400}}},
        PlanCase{"a turn ends where it ends, what is left goes round again",
                 {Prefilling(900, 0), Prefilling(100, 1)},
                 700,
                 0,
                 {{0, 600}, {1, 100}}},
        PlanCase{"a prompt never gets more than it has", {Prefilling(3, 0)}, 512, 0, {{0, 3}}},
        PlanCase{"one row: prefill when nothing decodes",
                 {Prefilling(9, 0), Paused(1)},
                 1,
                 0,
                 {{0, 1}}}));

using Rows = std::map<int, int64_t>;  // by sequence, of many steps

Rows RowsOf(const std::vector<StepSequence>& sequences, int32_t max_rows, int64_t n_steps,
            const BatchCostModel* costs = nullptr) {
  Rows rows;
  for (int64_t turn = 0; turn < n_steps; ++turn) {
    const std::vector<PlanItem> plan = PlanBatch(sequences, max_rows, turn, costs);
    int64_t sum = 0;
    std::set<int> ids;
    for (const PlanItem& item : plan) {
      EXPECT_TRUE(ids.insert(item.id).second);
      EXPECT_GT(item.n_rows, 0);
      EXPECT_LE(item.n_rows, std::ssize(sequences[static_cast<size_t>(item.id)].tokens));
      rows[item.id] += item.n_rows;
      sum += item.n_rows;
    }
    EXPECT_LE(sum, max_rows);
    EXPECT_FALSE(plan.empty());
  }
  return rows;
}

TEST(PlanBatch, MoreAnswersThanTokensStarveNobody) {
  std::vector<StepSequence> sequences;
  for (int i = 0; i < 11; ++i) sequences.push_back(Decoding(i));
  std::vector<int64_t> last(11, -1);
  for (int64_t turn = 0; turn < 400; ++turn) {
    for (const PlanItem& item : PlanBatch(sequences, 4, turn)) {
      EXPECT_LE(turn - last[item.id], 8) << item.id;
      last[item.id] = turn;
    }
  }
}

TEST(PlanBatch, PromptsGetAPartEvenWhenAnswersCouldTakeAll) {
  std::vector<StepSequence> sequences = {Prefilling(9, 0)};
  for (int i = 1; i <= 20; ++i) sequences.push_back(Decoding(i));
  Rows rows = RowsOf(sequences, 8, 800);
  EXPECT_NEAR(static_cast<double>(rows[0]), 800, 8);  // one of eight
  for (int i = 1; i <= 20; ++i) EXPECT_NEAR(static_cast<double>(rows[i]), 280, 30) << i;
}

// --- several clients ---

TEST(PlanBatch, AClientsPartCountsForAllItsCalls) {
  std::vector<StepSequence> sequences = {Decoding(0, "victim")};
  for (int call = 1; call <= 8; ++call) {
    for (int completion = 0; completion < 64; ++completion) {
      sequences.push_back(Decoding(call, "other"));
    }
  }
  Rows rows = RowsOf(sequences, 16, 100);
  EXPECT_EQ(rows[0], 100) << "a row in every step: less than its part";
  // The other's calls and their completions share alike what is left: 15 of 512 in a step.
  for (int i = 1; i <= 512; ++i) EXPECT_GE(rows[i], 1) << i;
}

TEST(PlanBatch, PartsFollowTheWeights) {
  std::vector<StepSequence> sequences = {Prefilling(1000, 0, "a"), Prefilling(1000, 1, "b"),
                                         Prefilling(1000, 2, "c")};
  sequences[1].weight = 2;
  Rows rows = RowsOf(sequences, 10, 4000);
  EXPECT_NEAR(static_cast<double>(rows[0]), 10'000, 20);
  EXPECT_NEAR(static_cast<double>(rows[1]), 20'000, 20);
  EXPECT_NEAR(static_cast<double>(rows[2]), 10'000, 20);
}

TEST(PlanBatch, WeightsHoldWhereAPartIsLessThanARow) {
  std::vector<StepSequence> sequences;
  for (int i = 0; i < 10; ++i) sequences.push_back(Decoding(i, i == 0 ? "0" : i < 5 ? "1" : "2"));
  sequences[0].weight = 3;
  Rows rows = RowsOf(sequences, 1, 5000);
  EXPECT_NEAR(static_cast<double>(rows[0]), 3000, 30);
  EXPECT_NEAR(static_cast<double>(rows[1]), 250, 15);
  EXPECT_NEAR(static_cast<double>(rows[9]), 200, 15);
}

TEST(PlanBatch, RowsOfDeepSessionsCostMore) {
  std::vector<StepSequence> sequences = {Prefilling(50'000, 0, "a"), Prefilling(50'000, 1, "b")};
  sequences[1].row_cost = 10;
  Rows rows = RowsOf(sequences, 512, 1000);
  EXPECT_NEAR(static_cast<double>(rows[0]) / static_cast<double>(rows[1]), 10, 0.2);
  EXPECT_GT(rows[0] + rows[1], 511'000) << "steps are full";
}

TEST(PlanBatch, WhatAClientLeavesIsTheOthers) {
  std::vector<StepSequence> sequences = {Decoding(0, "a"), Decoding(1, "b"),
                                         Prefilling(100'000, 2, "c")};
  Rows rows = RowsOf(sequences, 512, 10);
  EXPECT_EQ(rows[2], 5100);
}

// --- time ---

// A device that takes `fixed` for the weights and 1 for a row, in milliseconds.
BatchCostModel Learned(double fixed,
                       std::optional<absl::Duration> target = absl::InfiniteDuration()) {
  BatchCostModel costs(target);
  for (int round = 0; round < 200; ++round) {
    for (const double cost : {1, 2, 5, 8, 30, 70, 200, 512}) {
      costs.Observe(cost, absl::Milliseconds(fixed + cost));
    }
  }
  return costs;
}

TEST(PlanBatch, AStepEndsBeforeThePartOfWhoHasLeastToDoIsUsedUp) {
  for (const double fixed : {0.0, 20.0, 100.0}) {
    const BatchCostModel costs = Learned(fixed);
    for (const int n_others : {1, 3}) {
      std::vector<StepSequence> sequences = {Decoding(0, "victim")};
      const std::vector<const char*> names = {"b", "c", "d"};
      for (int i = 0; i < n_others; ++i) {
        sequences.push_back(Prefilling(100'000, 1 + i, names[static_cast<size_t>(i)]));
      }
      double rows = 0;
      for (const PlanItem& item : PlanBatch(sequences, 512, 3, &costs)) rows += item.n_rows;
      const double alone = fixed + 1, bound = alone * (n_others + 1);
      EXPECT_LE(fixed + rows, std::max(kFilled * bound, fixed + n_others + 1) * 1.1) << fixed;
      EXPECT_GE(fixed + rows, std::min(kFilled * bound, fixed + 512) * 0.85) << fixed;
    }
  }
}

TEST(PlanBatch, WhoWantsMoreHasNoLessThanWhoHasAllItWants) {
  const BatchCostModel costs = Learned(0);  // two rows take all that the promise allows
  const std::vector<StepSequence> sequences = {Decoding(0, "a"), Decoding(1, "b"),
                                               Decoding(2, "b")};
  for (int64_t turn = 0; turn < 4; ++turn) {
    const std::vector<PlanItem> plan = PlanBatch(sequences, 512, turn, &costs);
    ASSERT_EQ(plan.size(), 2u) << turn;
    EXPECT_EQ(plan[0].id, 0) << turn;
  }
}

TEST(PlanBatch, AloneAStepIsBoundOnlyByWhoMayCome) {
  const std::vector<StepSequence> sequences = {Prefilling(100'000, 0)};
  const BatchCostModel fast = Learned(20);  // 512 rows in 532 ms
  const double rows = PlanBatch(sequences, 512, 0, &fast).front().n_rows;
  EXPECT_NEAR(rows, 480, 15);
  const BatchCostModel slow = Learned(1000);
  EXPECT_EQ(PlanBatch(sequences, 512, 0, &slow).front().n_rows, 512) << "1.5 of 8 seconds";
}

// --- prompts beside answers ---

double RowsBeside(int n_answers, const BatchCostModel& costs) {
  std::vector<StepSequence> sequences;
  static const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g", "h"};
  for (int i = 0; i < n_answers; ++i) {
    sequences.push_back(Decoding(i, names[static_cast<size_t>(i)].c_str()));
  }
  sequences.push_back(Prefilling(100'000, n_answers, "reader"));
  double rows = 0;
  for (const PlanItem& item : PlanBatch(sequences, 512, 1, &costs)) rows += item.n_rows;
  return rows;
}

TEST(PlanBatch, PromptsBesideAnswersKeepToTheTarget) {
  for (const int n : {1, 7}) {  // each of whom the promise would let wait longer
    const double alone = 20 + n;
    EXPECT_LE(20 + RowsBeside(n, Learned(20, {})), kTargetSteps * alone * 1.05) << n;
    const double rows = RowsBeside(n, Learned(20, absl::Milliseconds(30)));
    EXPECT_LE(20 + rows, 30 * 1.05) << n;
    EXPECT_GT(rows, n) << "prompts are read all the same";
    EXPECT_GE(RowsBeside(n, Learned(20, absl::Milliseconds(1))), n) << "answers are not cut";
  }
  EXPECT_GT(RowsBeside(7, Learned(20)), 2 * RowsBeside(7, Learned(20, {})));
}

// Beside one answer, too, the same client's prompts are read in parts worth a step.
TEST(PlanBatch, FewAnswersHaveTheTargetOfSome) {
  const BatchCostModel costs = Learned(5, {});
  for (const int n : {1, 4, 12}) {
    std::vector<StepSequence> sequences;
    for (int i = 0; i < n; ++i) sequences.push_back(Decoding(i));
    sequences.push_back(Prefilling(100'000, n));
    double rows = 0;
    for (const PlanItem& item : PlanBatch(sequences, 512, 1, &costs)) rows += item.n_rows;
    const double target = kTargetSteps * (5 + std::max<double>(n, kTargetAnswers));
    EXPECT_NEAR(5 + rows, target, 0.1 * target) << n;
  }
}

TEST(PlanBatch, PromptsAloneHaveNoTarget) {
  const std::vector<StepSequence> sequences = {Prefilling(100'000, 0)};
  const BatchCostModel costs = Learned(1000, absl::Milliseconds(1));
  EXPECT_EQ(PlanBatch(sequences, 512, 0, &costs).front().n_rows, 512);
}

// --- guesses ---

const std::vector<float> kSure(8, 0.99f), kLikely(8, 0.7f), kUnlikely(8, 0.1f);
StepSequence Guessing(int64_t order, const std::vector<float>& probabilities) {
  StepSequence sequence = Decoding(order);
  sequence.guess = {std::span(kTokens).first(probabilities.size()), probabilities};
  return sequence;
}
std::vector<int32_t> Drafted(const std::vector<StepSequence>& sequences,
                             const BatchCostModel* costs, int32_t max_rows = 512) {
  std::vector<PlanItem> plan;
  for (size_t i = 0; i < sequences.size(); ++i) plan.push_back({static_cast<int>(i), 1});
  PlanDrafts(sequences, max_rows, costs, plan);
  std::vector<int32_t> drafted;
  for (const PlanItem& item : plan) drafted.push_back(item.n_drafted);
  return drafted;
}

using testing::ElementsAre;

TEST(PlanDrafts, AsManyAsAreAGain) {
  const BatchCostModel costs = Learned(20);  // a row takes a twentieth of what a step begins with
  EXPECT_THAT(Drafted({Guessing(0, kSure)}, &costs), ElementsAre(8));
  const int32_t some = Drafted({Guessing(0, kLikely)}, &costs).front();
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 8);
  EXPECT_THAT(Drafted({Guessing(0, kUnlikely)}, &costs), ElementsAre(testing::Le(1)));
  EXPECT_THAT(Drafted({Decoding(0)}, &costs), ElementsAre(0));
}

TEST(PlanDrafts, NoneWhereARowTakesAsLongAsAStep) {
  const BatchCostModel costs = Learned(0);
  EXPECT_THAT(Drafted({Guessing(0, kSure)}, &costs), ElementsAre(0));
}

TEST(PlanDrafts, RowsOfOthersAreTheirs) {
  EXPECT_THAT(Drafted({Guessing(0, kSure), Decoding(1)}, nullptr, 5), ElementsAre(3, 0));
  EXPECT_THAT(Drafted({Guessing(0, kSure), Decoding(1)}, nullptr, 2), ElementsAre(0, 0));
  EXPECT_THAT(Drafted({Guessing(0, kSure), Decoding(1)}, nullptr, 1), ElementsAre(0, 0));
  EXPECT_THAT(Drafted({Guessing(0, kLikely), Guessing(1, kSure)}, nullptr, 9), ElementsAre(0, 7));
}

// Of a step of 21 ms a row takes 1: who guesses nothing would wait for the guesses of others.
TEST(PlanDrafts, WhoGuessesNothingWaitsNoLonger) {
  const BatchCostModel costs = Learned(20);
  EXPECT_THAT(Drafted({Guessing(0, kSure), Decoding(1)}, &costs), ElementsAre(0, 0));
  const std::vector<int32_t> both = Drafted({Guessing(0, kSure), Guessing(1, kSure)}, &costs);
  EXPECT_THAT(both, testing::Each(testing::Gt(3)));
}

TEST(BatchCostModel, KnowNothingAtFirst) {
  const BatchCostModel costs;
  const std::vector<StepSequence> sequences = {Prefilling(1000, 0)};
  EXPECT_EQ(PlanBatch(sequences, 512, 0, &costs).front().n_rows, kLongStepRows);
}

TEST(BatchCostModel, FollowWhatStepsTake) {
  const BatchCostModel costs = Learned(20);
  for (const double cost : {1.0, 3.0, 16.0, 100.0, 512.0}) {
    EXPECT_NEAR(costs.Seconds(cost), (20 + cost) / 1000, 0.1 * (20 + cost) / 1000) << cost;
    EXPECT_NEAR(costs.Reach(costs.Seconds(cost)), cost, 1e-6 * cost);
  }
}

TEST(BatchCostModel, WhoSlowsTheMachineDownDoesNotRaiseWhatARowTakesAlone) {
  BatchCostModel costs;
  for (int i = 0; i < 100; ++i) costs.Observe(1, absl::Milliseconds(1));
  for (int i = 0; i < 100; ++i) costs.Observe(3, absl::Milliseconds(20));
  EXPECT_NEAR(costs.Seconds(1), 0.001, 1e-6);
  EXPECT_NEAR(costs.Seconds(3), 0.020, 1e-3);
  costs.Observe(1, absl::Milliseconds(2));  // but a row that takes longer does
  EXPECT_GT(costs.Seconds(1), 0.00105);
}
TEST(BatchCostModel, AnInterruptedStepIsSoonForgotten) {
  BatchCostModel costs = Learned(20);
  const double before = costs.Seconds(100);
  costs.Observe(100, absl::Seconds(30));
  EXPECT_LT(costs.Seconds(100), before * 1.3);
  for (int i = 0; i < 20; ++i) costs.Observe(1, absl::Milliseconds(21));
  EXPECT_LT(costs.Seconds(100), before * 1.3);
  for (int i = 0; i < 20; ++i) costs.Observe(100, absl::Milliseconds(120));
  EXPECT_NEAR(costs.Seconds(100), before, before * 0.05);
}

}  // namespace
}  // namespace ovq
