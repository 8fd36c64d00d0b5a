// BatchPlanner: the choice of a batch's tokens, and learned batch costs.
#include "server/engine/scheduling/batch_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/server/engine/batch_candidates.h"

namespace ovq::engine {
namespace {

using test::Decoding;
using test::Learned;
using test::Prefilling;

BatchCandidate Paused(int64_t order) {
  BatchCandidate candidate = Decoding(order);
  candidate.paused = true;
  return candidate;
}
BatchCandidate Read(BatchCandidate candidate, int64_t consumed) {
  candidate.consumed = consumed;
  return candidate;
}

// --- one client ---

struct PlanCase {
  const char* name;
  std::vector<BatchCandidate> candidates;
  int32_t max_tokens;
  int64_t turn;
  std::vector<PlanItem> plan;
};

void PrintTo(const PlanCase& c, std::ostream* os) { *os << c.name; }

class PlanBatchTest : public testing::TestWithParam<PlanCase> {};

TEST_P(PlanBatchTest, Plan) {
  const PlanCase& c = GetParam();
  const std::vector<PlanItem> plan = PlanBatch(c.candidates, c.max_tokens, c.turn);
  ASSERT_EQ(plan.size(), c.plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].candidate, c.plan[i].candidate) << i;
    EXPECT_EQ(plan[i].n_tokens, c.plan[i].n_tokens) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, PlanBatchTest,
    testing::Values(
        PlanCase{"nothing", {}, 8, 0, {}},
        PlanCase{"paused sequences get no token", {Paused(0), Decoding(1)}, 8, 0, {{1, 1}}},
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
                 {Read(Prefilling(900, 0), kPromptRound), Prefilling(700, 1)},
                 400,
                 0,
                 {{1, 400}}},
        PlanCase{"a turn ends where it ends, what is left goes round again",
                 {Prefilling(900, 0), Prefilling(100, 1)},
                 700,
                 0,
                 {{0, 600}, {1, 100}}},
        PlanCase{"a prompt never gets more than it has", {Prefilling(3, 0)}, 512, 0, {{0, 3}}},
        PlanCase{"one token: prefill when nothing decodes",
                 {Prefilling(9, 0), Paused(1)},
                 1,
                 0,
                 {{0, 1}}}));

using TokenCounts = std::map<int, int64_t>;  // by candidate, over many batches

TokenCounts CountTokens(const std::vector<BatchCandidate>& candidates, int32_t max_tokens,
                        int64_t n_batches, const BatchCostModel* costs = nullptr) {
  TokenCounts tokens;
  for (int64_t turn = 0; turn < n_batches; ++turn) {
    const std::vector<PlanItem> plan = PlanBatch(candidates, max_tokens, turn, costs);
    int64_t sum = 0;
    std::set<int> ids;
    for (const PlanItem& item : plan) {
      EXPECT_TRUE(ids.insert(item.candidate).second);
      EXPECT_GT(item.n_tokens, 0);
      EXPECT_LE(item.n_tokens, candidates[static_cast<size_t>(item.candidate)].n_tokens);
      tokens[item.candidate] += item.n_tokens;
      sum += item.n_tokens;
    }
    EXPECT_LE(sum, max_tokens);
    EXPECT_FALSE(plan.empty());
  }
  return tokens;
}

TEST(PlanBatch, MoreAnswersThanTokensStarveNobody) {
  std::vector<BatchCandidate> candidates;
  for (int i = 0; i < 11; ++i) candidates.push_back(Decoding(i));
  std::vector<int64_t> last(11, -1);
  for (int64_t turn = 0; turn < 400; ++turn) {
    for (const PlanItem& item : PlanBatch(candidates, 4, turn)) {
      EXPECT_LE(turn - last[item.candidate], 8) << item.candidate;
      last[item.candidate] = turn;
    }
  }
}

TEST(PlanBatch, PromptsGetAPartEvenWhenAnswersCouldTakeAll) {
  std::vector<BatchCandidate> candidates = {Prefilling(9, 0)};
  for (int i = 1; i <= 20; ++i) candidates.push_back(Decoding(i));
  TokenCounts tokens = CountTokens(candidates, 8, 800);
  EXPECT_NEAR(static_cast<double>(tokens[0]), 800, 8);  // one of eight
  for (int i = 1; i <= 20; ++i) EXPECT_NEAR(static_cast<double>(tokens[i]), 280, 30) << i;
}

// --- several clients ---

TEST(PlanBatch, AClientsPartCountsForAllItsCalls) {
  std::vector<BatchCandidate> candidates = {Decoding(0, "victim")};
  for (int call = 1; call <= 8; ++call) {
    for (int answer = 0; answer < 64; ++answer) {
      candidates.push_back(Decoding(call, "other"));
    }
  }
  TokenCounts tokens = CountTokens(candidates, 16, 100);
  EXPECT_EQ(tokens[0], 100) << "a token in every batch: less than its part";
  // The other client's calls and their answers share the rest alike: 15 of 512 in a batch.
  for (int i = 1; i <= 512; ++i) EXPECT_GE(tokens[i], 1) << i;
}

TEST(PlanBatch, PartsFollowTheWeights) {
  std::vector<BatchCandidate> candidates = {Prefilling(1000, 0, "a"), Prefilling(1000, 1, "b"),
                                            Prefilling(1000, 2, "c")};
  candidates[1].weight = 2;
  TokenCounts tokens = CountTokens(candidates, 10, 4000);
  EXPECT_NEAR(static_cast<double>(tokens[0]), 10'000, 20);
  EXPECT_NEAR(static_cast<double>(tokens[1]), 20'000, 20);
  EXPECT_NEAR(static_cast<double>(tokens[2]), 10'000, 20);
}

TEST(PlanBatch, WeightsHoldWhereAPartIsLessThanAToken) {
  std::vector<BatchCandidate> candidates;
  for (int i = 0; i < 10; ++i) candidates.push_back(Decoding(i, i == 0 ? "0" : i < 5 ? "1" : "2"));
  candidates[0].weight = 3;
  TokenCounts tokens = CountTokens(candidates, 1, 5000);
  EXPECT_NEAR(static_cast<double>(tokens[0]), 3000, 30);
  EXPECT_NEAR(static_cast<double>(tokens[1]), 250, 15);
  EXPECT_NEAR(static_cast<double>(tokens[9]), 200, 15);
}

TEST(PlanBatch, TokensOfDeepSessionsCostMore) {
  std::vector<BatchCandidate> candidates = {Prefilling(50'000, 0, "a"), Prefilling(50'000, 1, "b")};
  candidates[1].token_cost = 10;
  TokenCounts tokens = CountTokens(candidates, 512, 1000);
  EXPECT_NEAR(static_cast<double>(tokens[0]) / static_cast<double>(tokens[1]), 10, 0.2);
  EXPECT_GT(tokens[0] + tokens[1], 511'000) << "batches are full";
}

TEST(PlanBatch, OthersGetWhatAClientLeaves) {
  std::vector<BatchCandidate> candidates = {Decoding(0, "a"), Decoding(1, "b"),
                                            Prefilling(100'000, 2, "c")};
  TokenCounts tokens = CountTokens(candidates, 512, 10);
  EXPECT_EQ(tokens[2], 5100);
}

// --- time ---

TEST(PlanBatch, AnIterationEndsBeforeThePartOfWhoHasLeastToDoIsUsedUp) {
  for (const double fixed : {0.0, 20.0, 100.0}) {
    const BatchCostModel costs = Learned(fixed);
    for (const int n_others : {1, 3}) {
      std::vector<BatchCandidate> candidates = {Decoding(0, "victim")};
      const std::vector<const char*> names = {"b", "c", "d"};
      for (int i = 0; i < n_others; ++i) {
        candidates.push_back(Prefilling(100'000, 1 + i, names[static_cast<size_t>(i)]));
      }
      double tokens = 0;
      for (const PlanItem& item : PlanBatch(candidates, 512, 3, &costs)) tokens += item.n_tokens;
      const double alone = fixed + 1, bound = alone * (n_others + 1);
      EXPECT_LE(fixed + tokens, std::max(kFilled * bound, fixed + n_others + 1) * 1.1) << fixed;
      EXPECT_GE(fixed + tokens, std::min(kFilled * bound, fixed + 512) * 0.85) << fixed;
    }
  }
}

TEST(PlanBatch, WhoWantsMoreHasNoLessThanWhoHasAllItWants) {
  const BatchCostModel costs = Learned(0);  // two tokens take all the time that the promise allows
  const std::vector<BatchCandidate> candidates = {Decoding(0, "a"), Decoding(1, "b"),
                                                  Decoding(2, "b")};
  for (int64_t turn = 0; turn < 4; ++turn) {
    const std::vector<PlanItem> plan = PlanBatch(candidates, 512, turn, &costs);
    ASSERT_EQ(plan.size(), 2u) << turn;
    EXPECT_EQ(plan[0].candidate, 0) << turn;
  }
}

TEST(PlanBatch, AloneAnIterationIsBoundOnlyByWhoMayCome) {
  const std::vector<BatchCandidate> candidates = {Prefilling(100'000, 0)};
  const BatchCostModel fast = Learned(20);  // 512 tokens in 532 ms
  const double tokens = PlanBatch(candidates, 512, 0, &fast).front().n_tokens;
  EXPECT_NEAR(tokens, 480, 15);
  const BatchCostModel slow = Learned(1000);
  EXPECT_EQ(PlanBatch(candidates, 512, 0, &slow).front().n_tokens, 512) << "1.5 of 8 seconds";
}

// --- time beside the batch ---

BatchCandidate WithForm(BatchCandidate candidate, double seconds) {
  candidate.token_seconds = seconds;
  return candidate;
}

// However little a further token takes of a batch, the time of its form is not shared.
TEST(PlanBatch, FormsThatTakeLongLeaveOthersTheirPart) {
  for (const double fixed : {0.0, 20.0, 100.0}) {
    const BatchCostModel costs = Learned(fixed);
    for (const double form : {0.001, 0.1, 1.0}) {
      SCOPED_TRACE(testing::Message() << fixed << " ms, forms of " << form << " s");
      std::vector<BatchCandidate> candidates = {Decoding(0, "victim")};
      for (int i = 0; i < 64; ++i) candidates.push_back(WithForm(Decoding(1, "b"), form));
      constexpr int kRounds = 20'000;
      double forms = 0, seconds = 0, victim = 0;
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<PlanItem> plan = PlanBatch(candidates, 512, round, &costs);
        double n = 0;
        for (const PlanItem& item : plan) {
          ++n;
          (item.candidate == 0 ? victim : forms) += item.candidate == 0 ? 1 : form;
        }
        seconds += costs.Seconds(n);
      }
      seconds += forms;
      EXPECT_GE(victim / seconds, 0.4 / costs.Seconds(1));
      EXPECT_GE(forms / seconds, 0.03) << "which have a part all the same";
    }
  }
}

TEST(PlanBatch, FormsAloneEndAnIterationInTime) {
  const BatchCostModel costs = Learned(20);
  const std::vector<BatchCandidate> candidates(64, WithForm(Decoding(0), 0.1));
  const double n = static_cast<double>(PlanBatch(candidates, 512, 0, &costs).size());
  EXPECT_LE(0.1 * n, kLongBatchSeconds);
  EXPECT_GE(0.1 * n, 0.7 * kLongBatchSeconds);
}

TEST(PlanBatch, AnswersWithFormsHaveTheTargetOfTheirTime) {
  EXPECT_NEAR(Learned(5, {}).Target(20, 0.1), kTargetIterations * 0.125, 0.01);
  EXPECT_NEAR(Learned(5, absl::Milliseconds(50)).Target(20, 0.1), 0.125, 0.004);
}

// --- kinds of rows ---

// A machine takes 5 ms for an iteration, 1 more for an answer's row, and `prompt` for a prompt's.
TEST(BatchCostModel, LearnsWhatAKindOfRowCosts) {
  for (const double prompt : {0.5, 1.0, 2.0}) {
    BatchCostModel costs;
    for (int i = 0; i < 1000; ++i) {
      for (const double n : {1, 2, 4, 8, 16, 32, 64}) {
        costs.Observe({n, 0, 0, 0}, 0, absl::Milliseconds(5 + n));
        costs.Observe({0, n, 0, 0}, 0, absl::Milliseconds(5 + n * prompt));
      }
    }
    EXPECT_NEAR(costs.row_costs()[static_cast<size_t>(RowKind::kPrompt)], prompt, 0.1 * prompt);
  }
}

TEST(BatchCostModel, RowsOfOneKindAloneDoNotChangeWhatTheyCostForEver) {
  BatchCostModel costs;
  const auto prompt = [&costs] { return costs.row_costs()[static_cast<size_t>(RowKind::kPrompt)]; };
  costs.SetRowCost(RowKind::kPrompt, 0.5);
  for (int i = 0; i < 100'000; ++i) {  // a machine that is slower and slower, then faster
    costs.Observe({0, 64, 0, 0}, 0, absl::Milliseconds(1) * std::pow(1.01, i % 1000));
  }
  EXPECT_GE(prompt(), 0.5 / 4);
  EXPECT_LE(prompt(), 0.5 * 4);
}

TEST(BatchCostModel, WhatIsMeasuredCountsFromTheFirstPlanOn) {
  BatchCostModel costs({}, absl::ZeroDuration(), {1, 1, 0, 0});
  costs.Observe(1, absl::Milliseconds(1));
  costs.Observe(64, absl::Milliseconds(64));
  costs.SetRowCost(RowKind::kPrompt, 4);
  std::vector<BatchCandidate> candidates = {Decoding(0, "victim"), Prefilling(1000, 1, "reader")};
  const auto read = [&] {
    candidates[1].token_cost = costs.Cost({0, 1, 0, 0});
    double tokens = 0;
    for (int round = 0; round < 100; ++round) {
      for (const PlanItem& item : PlanBatch(candidates, 512, round, &costs)) {
        if (item.candidate == 1) tokens += item.n_tokens;
      }
    }
    return tokens;
  };
  const double dear = read();
  costs.SetRowCost(RowKind::kPrompt, 1);
  EXPECT_NEAR(read() / dear, 4, 0.8);
}

// --- prompts beside answers ---

double TokensBeside(int n_answers, const BatchCostModel& costs) {
  std::vector<BatchCandidate> candidates;
  static const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g", "h"};
  for (int i = 0; i < n_answers; ++i) {
    candidates.push_back(Decoding(i, names[static_cast<size_t>(i)].c_str()));
  }
  candidates.push_back(Prefilling(100'000, n_answers, "reader"));
  double tokens = 0;
  for (const PlanItem& item : PlanBatch(candidates, 512, 1, &costs)) tokens += item.n_tokens;
  return tokens;
}

TEST(PlanBatch, PromptsBesideAnswersKeepToTheTarget) {
  for (const int n : {1, 7}) {  // the promise alone would let each wait longer
    const double alone = 20 + n;
    EXPECT_LE(20 + TokensBeside(n, Learned(20, {})), kTargetIterations * alone * 1.05) << n;
    const double tokens = TokensBeside(n, Learned(20, absl::Milliseconds(30)));
    EXPECT_LE(20 + tokens, 30 * 1.05) << n;
    EXPECT_GT(tokens, n) << "prompts are prefilled all the same";
    EXPECT_GE(TokensBeside(n, Learned(20, absl::Milliseconds(1))), n) << "answers are not cut";
  }
  EXPECT_GT(TokensBeside(7, Learned(20)), 2 * TokensBeside(7, Learned(20, {})));
}

// Fewer answers count as kTargetAnswers, so that a client's prompts beside them are not prefilled
// just a few tokens at a time.
TEST(PlanBatch, FewAnswersHaveTheTargetOfSome) {
  const BatchCostModel costs = Learned(5, {});
  for (const int n : {1, 4, 12}) {
    std::vector<BatchCandidate> candidates;
    for (int i = 0; i < n; ++i) candidates.push_back(Decoding(i));
    candidates.push_back(Prefilling(100'000, n));
    double tokens = 0;
    for (const PlanItem& item : PlanBatch(candidates, 512, 1, &costs)) tokens += item.n_tokens;
    const double target = kTargetIterations * (5 + std::max<double>(n, kTargetAnswers));
    EXPECT_NEAR(5 + tokens, target, 0.1 * target) << n;
  }
}

TEST(PlanBatch, TheDefaultTargetIsAtLeastSoLong) {
  const double few = 5 + TokensBeside(4, Learned(5, {}));  // 3 times 5 + 8 ms
  EXPECT_NEAR(5 + TokensBeside(4, Learned(5, {}, absl::Milliseconds(10))), few, 0.1);
  EXPECT_NEAR(Learned(5, {}, absl::Milliseconds(200)).Target(4, 0), 0.2, 1e-9);
  EXPECT_NEAR(Learned(5, absl::Milliseconds(50), absl::Milliseconds(200)).Target(4, 0), 0.05, 1e-9)
      << "a target that was asked for stands";
}

TEST(PlanBatch, PromptsAloneHaveNoTarget) {
  const std::vector<BatchCandidate> candidates = {Prefilling(100'000, 0)};
  const BatchCostModel costs = Learned(1000, absl::Milliseconds(1));
  EXPECT_EQ(PlanBatch(candidates, 512, 0, &costs).front().n_tokens, 512);
}

// --- drafts ---

const std::vector<float> kSure(8, 0.99f), kLikely(8, 0.7f), kUnlikely(8, 0.1f);
BatchCandidate WithDrafts(int64_t order, const std::vector<float>& probabilities) {
  BatchCandidate candidate = Decoding(order);
  candidate.draft_probabilities = probabilities;
  return candidate;
}
std::vector<int32_t> Drafted(const std::vector<BatchCandidate>& candidates,
                             const BatchCostModel* costs, int32_t max_tokens = 512) {
  std::vector<PlanItem> plan;
  for (size_t i = 0; i < candidates.size(); ++i) plan.push_back({static_cast<int>(i), 1});
  PlanDrafts(candidates, max_tokens, costs, plan);
  std::vector<int32_t> drafted;
  for (const PlanItem& item : plan) drafted.push_back(item.n_drafted);
  return drafted;
}

using testing::ElementsAre;

TEST(PlanDrafts, AsManyAsAreAGain) {
  const BatchCostModel costs = Learned(20);  // a token takes a twentieth of the fixed time
  EXPECT_THAT(Drafted({WithDrafts(0, kSure)}, &costs), ElementsAre(8));
  const int32_t some = Drafted({WithDrafts(0, kLikely)}, &costs).front();
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 8);
  EXPECT_THAT(Drafted({WithDrafts(0, kUnlikely)}, &costs), ElementsAre(testing::Le(1)));
  EXPECT_THAT(Drafted({Decoding(0)}, &costs), ElementsAre(0));
}

TEST(PlanDrafts, NoneWhereATokenTakesAsLongAsABatch) {
  const BatchCostModel costs = Learned(0);
  EXPECT_THAT(Drafted({WithDrafts(0, kSure)}, &costs), ElementsAre(0));
}

TEST(PlanDrafts, TokensOfOthersAreTheirs) {
  EXPECT_THAT(Drafted({WithDrafts(0, kSure), Decoding(1)}, nullptr, 5), ElementsAre(3, 0));
  EXPECT_THAT(Drafted({WithDrafts(0, kSure), Decoding(1)}, nullptr, 2), ElementsAre(0, 0));
  EXPECT_THAT(Drafted({WithDrafts(0, kSure), Decoding(1)}, nullptr, 1), ElementsAre(0, 0));
  EXPECT_THAT(Drafted({WithDrafts(0, kLikely), WithDrafts(1, kSure)}, nullptr, 9),
              ElementsAre(0, 7));
}

// A token takes 1 ms of an iteration of 21 ms: an answer without drafts would wait for the others.
TEST(PlanDrafts, AnAnswerWithoutDraftsWaitsNoLonger) {
  const BatchCostModel costs = Learned(20);
  EXPECT_THAT(Drafted({WithDrafts(0, kSure), Decoding(1)}, &costs), ElementsAre(0, 0));
  const std::vector<int32_t> both = Drafted({WithDrafts(0, kSure), WithDrafts(1, kSure)}, &costs);
  EXPECT_THAT(both, testing::Each(testing::Gt(3)));
}

// --- choices that stand ---

class BatchPlannerTest : public testing::Test {
 protected:
  BatchPlannerTest() {
    config_.options.max_batch_tokens = 2;
    for (int i = 0; i < 5; ++i) candidates_.push_back(Decoding(i));
  }
  BatchPlanner& planner() {
    if (!planner_) planner_.emplace(config_);
    return *planner_;
  }
  bool Stands() { return !planner().Standing(now_).empty(); }
  void Choose() { planner().Choose(candidates_, now_); }
  std::vector<PlanItem> Plan() { return planner().Plan(candidates_); }
  std::vector<PlanItem> ChoosePlan() {
    Choose();
    return Plan();
  }
  static const model::StateLayout* Variant(size_t i) {  // never dereferenced
    static const std::array<char, 2> kPlaces = {};
    return reinterpret_cast<const model::StateLayout*>(&kPlaces[i]);
  }

  EngineConfig config_;
  SteadyTime now_;
  std::vector<BatchCandidate> candidates_;
  std::optional<BatchPlanner> planner_;
};

TEST_F(BatchPlannerTest, AChoiceStandsForSomeIterationsOfAnswers) {
  EXPECT_FALSE(Stands()) << "there was none";
  const std::vector<PlanItem> first = ChoosePlan();
  int n = 1;
  for (; Stands(); ++n) EXPECT_EQ(Plan(), first);
  EXPECT_GT(n, 2);
  EXPECT_LT(n, 50);
  EXPECT_NE(ChoosePlan(), first) << "others have their turn";
}

TEST_F(BatchPlannerTest, AChoiceStandsForAShortTime) {
  ChoosePlan();
  now_ += std::chrono::microseconds(20);
  EXPECT_TRUE(Stands());
  now_ += std::chrono::milliseconds(1);
  EXPECT_FALSE(Stands()) << "with five candidates";
  for (int i = 0; i < 95; ++i) candidates_.push_back(Decoding(5 + i));
  ChoosePlan();
  now_ += std::chrono::microseconds(900);
  EXPECT_TRUE(Stands()) << "with a hundred";
  now_ += std::chrono::microseconds(200);
  EXPECT_FALSE(Stands());
}

TEST_F(BatchPlannerTest, AChoiceIsDropped) {
  ChoosePlan();
  EXPECT_TRUE(Stands());
  planner().DropStanding();
  EXPECT_FALSE(Stands());
}

TEST_F(BatchPlannerTest, AChoiceWithAPromptOrOfOneOfTwoVariantsDoesNotStand) {
  candidates_ = {Prefilling(4, 0)};
  ChoosePlan();
  EXPECT_FALSE(Stands());
  candidates_ = {Decoding(0)};
  ChoosePlan();
  EXPECT_TRUE(Stands());
  candidates_.push_back(Decoding(1));
  candidates_[1].layout = Variant(1);
  ChoosePlan();
  EXPECT_FALSE(Stands()) << "variants take turns";
}

TEST_F(BatchPlannerTest, VariantsTakeTurns) {
  config_.options.max_batch_tokens = 8;
  candidates_.clear();
  for (size_t i = 0; i < 3; ++i) {
    candidates_.push_back(Prefilling(4, 0));
    candidates_[i].layout = Variant(i == 1 ? 1 : 0);
  }
  EXPECT_THAT(ChoosePlan(), ElementsAre(PlanItem{0, 4}, PlanItem{2, 4}));
  EXPECT_THAT(ChoosePlan(), ElementsAre(PlanItem{1, 4}));
  EXPECT_THAT(ChoosePlan(), ElementsAre(PlanItem{0, 4}, PlanItem{2, 4}));
  candidates_[1].paused = true;
  EXPECT_THAT(ChoosePlan(), ElementsAre(PlanItem{0, 4}, PlanItem{2, 4}))
      << "a paused variant has no turn";
}

TEST_F(BatchPlannerTest, DecodingTokensOfSeveralVariantsDoNotStarve) {
  candidates_.clear();
  for (size_t i = 0; i < 8; ++i) {
    candidates_.push_back(Decoding(0));
    candidates_[i].layout = Variant(i / 4);
  }
  std::map<int, int> tokens;
  for (int i = 0; i < 8; ++i) {
    for (const PlanItem& item : ChoosePlan()) tokens[item.candidate] += item.n_tokens;
  }
  for (int i = 0; i < 8; ++i) EXPECT_EQ(tokens[i], 2) << i;
}

TEST_F(BatchPlannerTest, NothingIsChosenWhileAllArePaused) {
  for (BatchCandidate& candidate : candidates_) candidate.paused = true;
  EXPECT_TRUE(ChoosePlan().empty());
  candidates_.clear();
  EXPECT_TRUE(ChoosePlan().empty());
}

// --- costs ---

TEST(BatchCostModel, KnowsNothingAtFirst) {
  const BatchCostModel costs;
  const std::vector<BatchCandidate> candidates = {Prefilling(1000, 0)};
  EXPECT_EQ(PlanBatch(candidates, 512, 0, &costs).front().n_tokens, kLongBatchTokens);
}

TEST(BatchCostModel, FollowsWhatIterationsTake) {
  const BatchCostModel costs = Learned(20);
  for (const double cost : {1.0, 3.0, 16.0, 100.0, 512.0}) {
    EXPECT_NEAR(costs.Seconds(cost), (20 + cost) / 1000, 0.1 * (20 + cost) / 1000) << cost;
    EXPECT_NEAR(costs.Reach(costs.Seconds(cost)), cost, 1e-6 * cost);
  }
}

TEST(BatchCostModel, WhoSlowsTheMachineDownDoesNotRaiseWhatATokenTakesAlone) {
  BatchCostModel costs;
  for (int i = 0; i < 100; ++i) costs.Observe(1, absl::Milliseconds(1));
  for (int i = 0; i < 100; ++i) costs.Observe(3, absl::Milliseconds(20));
  EXPECT_NEAR(costs.Seconds(1), 0.001, 1e-6);
  EXPECT_NEAR(costs.Seconds(3), 0.020, 1e-3);
  costs.Observe(1, absl::Milliseconds(2));  // but a token that takes longer does
  EXPECT_GT(costs.Seconds(1), 0.00105);
}
TEST(BatchCostModel, AnInterruptedIterationIsSoonForgotten) {
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
}  // namespace ovq::engine
