// One step: from sequences to the batch's fields and back to results; no thread.
#include "server/engine/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/server/engine/parts.h"

namespace ovq::test {
namespace {

using testing::ElementsAre;

class StepTest : public testing::Test {
 protected:
  StepTest() {
    config_.model = parts_.model.Make();
    config_.options.max_batch_tokens = 8;
    for (ModelVariant& memory : config_.model.variants) {
      memory.forward = [this, forward = memory.forward](const Batch& batch, DeviceContext& context,
                                                        ScratchScope& s) {
        batch_ = batch;
        return forward(batch, context, s);
      };
    }
  }
  ~StepTest() override {
    for (StateHandle& state : states_) parts_.pool.Release(state);
  }
  StateHandle& Acquire(size_t memory = 0) {
    const StateLayout& layout = parts_.model.layout(memory);
    return states_.emplace_back(*parts_.pool.Acquire(layout, kDefaultSlotCap, size_t{1} << 20));
  }
  std::unique_ptr<Completion> NewCompletion() {
    return std::make_unique<Completion>(request_, 0, 5, config_.model.eos_token_ids, kVocab,
                                        nullptr);
  }

  std::vector<PlanItem> RunOn(Executor& step, std::span<const StepSequence> sequences,
                              IterationReport& report) {
    step.Choose(sequences, now_);
    return step.Run(sequences, report);
  }

  Parts parts_{{}, {.exact_too = true}};
  SteadyTime now_;
  EngineConfig config_;
  Batch batch_;  // the last
  GenerateRequest request_ = SampleRequest({1}, 10);
  std::deque<StateHandle> states_;
};

TEST_F(StepTest, RowsLieEndToEndAndAskForWhatIsWanted) {
  Executor step(config_, *parts_.context, parts_.pool);
  StateHandle& score = Acquire();
  StateHandle& prompt = Acquire();
  StateHandle& answer = Acquire();
  const std::vector<int32_t> scored = {1, 2, 3}, long_prompt = {9, 8, 7, 6, 5, 4}, drawn = {42};
  std::vector<std::unique_ptr<Completion>> completion;
  completion.push_back(NewCompletion());
  std::vector<StepSequence> sequences(3);
  sequences[0] = {.state = &score, .tokens = scored, .order = 0, .score_top = 2};
  sequences[1] = {.state = &prompt, .tokens = long_prompt, .order = 1, .draws = completion};
  sequences[2] = {
      .state = &answer, .tokens = drawn, .decoding = true, .order = 2, .draws = completion};
  IterationReport report;
  const std::vector<PlanItem> plan = RunOn(step, sequences, report);
  EXPECT_THAT(plan, ElementsAre(PlanItem{2, 1}, PlanItem{0, 3}, PlanItem{1, 4}));
  EXPECT_THAT(batch_.token_ids, ElementsAre(42, 1, 2, 3, 9, 8, 7, 6));
  EXPECT_THAT(batch_.token_begin, ElementsAre(0, 1, 4, 8));
  EXPECT_THAT(batch_.start_pos, ElementsAre(0, 0, 0));
  EXPECT_THAT(batch_.slot_cap, ElementsAre(256, 256, 256));
  EXPECT_THAT(batch_.state, ElementsAre(answer.base, score.base, prompt.base));
  EXPECT_THAT(batch_.logits_indices, ElementsAre(0, 1, 2, 3))
      << "the prompt's last is not among them";
  EXPECT_EQ(answer.position, 1);
  EXPECT_EQ(score.position, 3);
  EXPECT_EQ(prompt.position, 4);
  EXPECT_EQ(report.decode_tokens, 1);
  EXPECT_EQ(report.prefill_tokens, 7);
  EXPECT_EQ(report.dictionary_inserts + report.dictionary_merges, 4) << "one chunk of the prompt";

  step.NextDraw();
  for (int i = 0; i < 3; ++i) {
    const TokenScore row = step.NextScore();
    EXPECT_EQ(row.logprob.has_value(), i < 2) << "no token follows the last";
    EXPECT_EQ(row.top.size(), 2u);
  }
}

TEST_F(StepTest, TheLastOfAPromptDrawsForEveryCompletion) {
  parts_.model.Script(6, 77);
  Executor step(config_, *parts_.context, parts_.pool);
  StateHandle& state = Acquire();
  const std::vector<int32_t> prompt = SomeTokens(6, 1);
  std::vector<std::unique_ptr<Completion>> completions;
  for (int i = 0; i < 3; ++i) completions.push_back(NewCompletion());
  const StepSequence sequence{.state = &state, .tokens = prompt, .draws = completions};
  IterationReport report;
  EXPECT_THAT(RunOn(step, {&sequence, 1}, report), ElementsAre(PlanItem{0, 6}));
  EXPECT_THAT(batch_.logits_indices, ElementsAre(5));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step.NextDraw().token_id, 77);
}

TEST_F(StepTest, VariantsAreServedInRounds) {
  Executor step(config_, *parts_.context, parts_.pool);
  const std::vector<int32_t> prompt = SomeTokens(4, 1);
  std::vector<StepSequence> sequences(3);
  for (size_t i = 0; i < 3; ++i) {
    sequences[i] = {.state = &Acquire(i == 1 ? 1 : 0), .tokens = prompt, .order = 0};
  }
  IterationReport report;
  EXPECT_THAT(RunOn(step, sequences, report), ElementsAre(PlanItem{0, 4}, PlanItem{2, 4}));
  EXPECT_THAT(RunOn(step, sequences, report), ElementsAre(PlanItem{1, 4}));
  EXPECT_THAT(RunOn(step, sequences, report), ElementsAre(PlanItem{0, 4}, PlanItem{2, 4}));
  for (StepSequence& sequence : sequences)
    sequence.paused = sequence.state->layout->has_unbounded();
  EXPECT_THAT(RunOn(step, sequences, report), ElementsAre(PlanItem{0, 4}, PlanItem{2, 4}))
      << "who is paused has no turn";
  EXPECT_EQ(states_[1].committed_bytes, parts_.model.layout(1).bytes_at(4, kDefaultSlotCap));
}

TEST_F(StepTest, DecodingTokensOfSeveralVariantsDoNotStarve) {
  config_.options.max_batch_tokens = 2;
  Executor step(config_, *parts_.context, parts_.pool);
  const std::vector<int32_t> token = {1};
  std::vector<StepSequence> sequences;
  for (size_t i = 0; i < 8; ++i) {
    sequences.push_back({.state = &Acquire(i / 4), .tokens = token, .decoding = true});
  }
  IterationReport report;
  for (int i = 0; i < 8; ++i) RunOn(step, sequences, report);
  for (const StateHandle& state : states_) EXPECT_EQ(state.position, 2);
}

class StepChoiceTest : public StepTest {
 protected:
  StepChoiceTest() {
    config_.options.max_batch_tokens = 2;
    for (int i = 0; i < 5; ++i) Answer(0);
  }
  void Answer(size_t memory) {
    sequences_.push_back({.state = &Acquire(memory), .tokens = token_, .decoding = true});
  }
  Executor& step() {
    if (!executor_) executor_.emplace(config_, *parts_.context, parts_.pool);
    return *executor_;
  }
  bool Stands() { return !step().Standing(now_).empty(); }
  std::vector<PlanItem> Run() {
    IterationReport report;
    return step().Run(sequences_, report);
  }

  const std::vector<int32_t> token_ = {1}, prompt_ = SomeTokens(4, 1);
  std::vector<StepSequence> sequences_;
  std::optional<Executor> executor_;
};

TEST_F(StepChoiceTest, StandsForSomeStepsOfAnswers) {
  EXPECT_FALSE(Stands()) << "there was none";
  step().Choose(sequences_, now_);
  const std::vector<PlanItem> first = Run();
  int n = 1;
  for (; Stands(); ++n) EXPECT_EQ(Run(), first);
  EXPECT_GT(n, 2);
  EXPECT_LT(n, 50);
  EXPECT_EQ(sequences_[static_cast<size_t>(first[0].id)].state->position, n);
  step().Choose(sequences_, now_);
  EXPECT_NE(Run(), first) << "others have their turn";
}

TEST_F(StepChoiceTest, StandsForAShortTime) {
  step().Choose(sequences_, now_);
  Run();
  now_ += std::chrono::microseconds(20);
  EXPECT_TRUE(Stands());
  now_ += std::chrono::milliseconds(1);
  EXPECT_FALSE(Stands()) << "of five sequences";
  for (int i = 0; i < 95; ++i) Answer(0);
  step().Choose(sequences_, now_);
  Run();
  now_ += std::chrono::microseconds(900);
  EXPECT_TRUE(Stands()) << "of a hundred";
  now_ += std::chrono::microseconds(200);
  EXPECT_FALSE(Stands());
}

TEST_F(StepChoiceTest, DoesNotStandBesideAPromptOrAnotherVariant) {
  sequences_[0].tokens = prompt_;
  sequences_[0].decoding = false;
  sequences_.resize(1);
  step().Choose(sequences_, now_);
  Run();
  EXPECT_FALSE(Stands());
  sequences_[0].decoding = true;
  sequences_[0].tokens = token_;
  step().Choose(sequences_, now_);
  EXPECT_TRUE(Stands());
  Answer(1);
  step().Choose(sequences_, now_);
  Run();
  EXPECT_FALSE(Stands()) << "memories take turns";
}

TEST_F(StepTest, NothingRunsWhileAllArePaused) {
  Executor step(config_, *parts_.context, parts_.pool);
  StateHandle& state = Acquire();
  const std::vector<int32_t> token = {1};
  const StepSequence paused{.state = &state, .tokens = token, .decoding = true, .paused = true};
  IterationReport report;
  EXPECT_TRUE(RunOn(step, {&paused, 1}, report).empty());
  EXPECT_TRUE(RunOn(step, {}, report).empty());
  EXPECT_EQ(parts_.model.gate().steps(), 0);
  EXPECT_EQ(state.position, 0);
}

}  // namespace
}  // namespace ovq::test
