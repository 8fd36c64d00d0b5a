// BatchPlanner: what clients owe for the host's work is taken from their parts.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/scheduling/batch_planner.h"
#include "tests/server/engine/batch_candidates.h"

namespace ovq::engine {
namespace {

using test::Decoding;
using test::Learned;
using test::Prefilling;

// Tokens of the second candidate's client in some iterations, while debts last.
double TokensInDebt(std::vector<BatchCandidate> candidates, std::vector<HostDebt>& debts,
                    int n_iterations, int first = 0) {
  const BatchCostModel costs = Learned(0);  // a token a millisecond
  double tokens = 0;
  for (int i = first; i < first + n_iterations; ++i) {
    for (const PlanItem& item :
         PlanBatch(candidates, 512, i, &costs, nullptr, 1, std::span(debts))) {
      if (candidates[static_cast<size_t>(item.candidate)].client == candidates[1].client) {
        tokens += item.n_tokens;
      }
    }
    for (HostDebt& debt : debts) debt.seconds -= std::exchange(debt.paid, 0);
  }
  return tokens;
}

TEST(PlanBatch, ASlowHostSideMakesItsClientWait) {
  const std::vector<BatchCandidate> candidates = {Decoding(0, "victim"), Decoding(1, "slow"),
                                                  Decoding(2, "slow")};
  std::vector<HostDebt> none, debts = {{.client = "slow", .seconds = 0.010}};
  EXPECT_NEAR(TokensInDebt(candidates, none, 20), 20, 1);
  EXPECT_NEAR(TokensInDebt(candidates, debts, 20), 10, 1.5) << "ten tokens pay for 10 ms";
  EXPECT_NEAR(debts[0].seconds, 0, 1e-6);
}

TEST(PlanBatch, ADebtThatNeverEndsLeavesAPartOfTheTokens) {
  const std::vector<BatchCandidate> candidates = {Decoding(0, "victim"), Decoding(1, "slow"),
                                                  Decoding(2, "slow")};
  double tokens = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<HostDebt> debts = {{.client = "slow", .seconds = 1e6}};
    tokens += TokensInDebt(candidates, debts, 1, i);
  }
  EXPECT_NEAR(tokens, 40 * (1 - kMostForDebt), 2);
}

TEST(PlanBatch, ASingleAnswerIsNotSlowedByItsDebt) {
  const std::vector<BatchCandidate> candidates = {Prefilling(4000, 0, "reads"),
                                                  Decoding(1, "answer")};
  std::vector<HostDebt> debts = {{.client = "answer", .seconds = 0.010}};
  EXPECT_EQ(TokensInDebt(candidates, debts, 20), 20);
  EXPECT_NEAR(debts[0].seconds, 0, 1e-6) << "is forgiven as fast as others pay";
}

// Clients of every kind among many debts, which are sorted by client.
TEST(PlanBatch, EachOfManyClientsPaysItsOwnDebt) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("client" + std::to_string(1000 + i));
  std::vector<BatchCandidate> candidates;
  std::vector<HostDebt> debts;
  for (int i = 0; i < 100; ++i) {
    if (i % 2 == 0)
      candidates.push_back(Decoding(99 - i, names[static_cast<size_t>(99 - i)].c_str()));
    if (i % 4 < 2) debts.push_back({.client = names[static_cast<size_t>(i)], .seconds = 0.001 * i});
  }
  const BatchCostModel costs = Learned(0);
  PlanBatch(candidates, 512, 0, &costs, nullptr, 1, debts);
  for (const HostDebt& debt : debts) {
    if (debt.seconds == 0) continue;
    EXPECT_GT(debt.paid, 0) << debt.client;
    EXPECT_LE(debt.paid, debt.seconds + 1e-9) << debt.client;
  }
}

TEST(PlanBatch, ClientsAlikeAreServedAsWithoutDebts) {
  const std::vector<BatchCandidate> candidates = {Decoding(0, "a"), Decoding(1, "b")};
  std::vector<HostDebt> debts = {{.client = "a", .seconds = 0.1}, {.client = "b", .seconds = 0.1}};
  EXPECT_EQ(TokensInDebt(candidates, debts, 10), 10);
  EXPECT_NEAR(debts[0].seconds, 0, 1e-9);
}

TEST(PlanBatch, WhoIsAloneIsServedAtOnce) {
  const std::vector<BatchCandidate> candidates = {Decoding(0, "a"), Decoding(1, "a")};
  std::vector<HostDebt> debts = {{.client = "a", .seconds = 0.5}};
  EXPECT_EQ(TokensInDebt(candidates, debts, 10), 20);
  EXPECT_NEAR(debts[0].seconds, 0, 1e-9);
}

TEST(PlanBatch, WhoWantsNoTokensPaysByItsPartOfTheTime) {
  const std::vector<BatchCandidate> candidates = {Decoding(0, "victim"), Decoding(1, "victim")};
  std::vector<HostDebt> debts = {{.client = "parses", .seconds = 0.1}};
  EXPECT_EQ(TokensInDebt(candidates, debts, 10), 20) << "others have all of the iterations";
  EXPECT_NEAR(debts[0].seconds, 0.1 - 10 * 0.002 / 2, 0.002);
}

TEST(PlanBatch, AnswersToOnePromptAreOneClientInDebt) {
  for (const int n : {2, 64}) {
    std::vector<BatchCandidate> candidates = {Decoding(0, "victim")};
    for (int i = 0; i < n; ++i) candidates.push_back(Decoding(1, "many"));
    std::vector<HostDebt> debts = {{.client = "many", .seconds = 0.010}};
    EXPECT_NEAR(TokensInDebt(candidates, debts, 20), 10, 1.5) << n;
  }
}

}  // namespace
}  // namespace ovq::engine
