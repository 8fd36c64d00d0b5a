#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "server/engine/step.h"

namespace ovq {
namespace {

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
  const std::vector<PlanItem> plan = PlanStep(c.sequences, c.max_rows, c.turn);
  ASSERT_EQ(plan.size(), c.plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].id, c.plan[i].id) << i;
    EXPECT_EQ(plan[i].n_rows, c.plan[i].n_rows) << i;
  }
}

const std::vector<int32_t> kTokens(100, 1);

StepSequence Prefilling(int64_t n_tokens, int64_t order) {
  return {.tokens = std::span(kTokens).first(static_cast<size_t>(n_tokens)), .order = order};
}
StepSequence Decoding(int64_t order) {
  StepSequence sequence = Prefilling(1, order);
  sequence.decoding = true;
  return sequence;
}
StepSequence Paused(int64_t order) {
  StepSequence sequence = Decoding(order);
  sequence.paused = true;
  return sequence;
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
        PlanCase{"a prompt never gets more than it has", {Prefilling(3, 0)}, 512, 0, {{0, 3}}},
        PlanCase{"more decoding than rows, turn 0",
                 {Decoding(0), Decoding(1), Decoding(2)},
                 2,
                 0,
                 {{0, 1}, {1, 1}}},
        PlanCase{"more decoding than rows, turn 1 continues",
                 {Decoding(0), Decoding(1), Decoding(2)},
                 2,
                 1,
                 {{2, 1}, {0, 1}}},
        PlanCase{"a prompt gets a row even when decoding could take all",
                 {Decoding(0), Decoding(1), Prefilling(9, 2)},
                 2,
                 0,
                 {{0, 1}, {2, 1}}},
        PlanCase{"one row: decoding", {Prefilling(9, 0), Decoding(1)}, 1, 0, {{1, 1}}},
        PlanCase{"one row: prefill when nothing decodes",
                 {Prefilling(9, 0), Paused(1)},
                 1,
                 0,
                 {{0, 1}}}));

TEST(PlanStep, RotationStarvesNobody) {
  std::vector<StepSequence> sequences;
  for (int i = 0; i < 11; ++i) sequences.push_back(Decoding(i));
  std::vector<int64_t> last(11, -1);
  for (int64_t turn = 0; turn < 60; ++turn) {
    std::set<int> chosen;
    for (const PlanItem& item : PlanStep(sequences, 4, turn)) {
      EXPECT_TRUE(chosen.insert(item.id).second) << "one row a step";
      EXPECT_LE(turn - last[item.id], 4) << item.id;
      last[item.id] = turn;
    }
    EXPECT_EQ(chosen.size(), 4u);
  }
}

}  // namespace
}  // namespace ovq
