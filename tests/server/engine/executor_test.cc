// One iteration: from sequences to the batch's fields and back to results; no thread.
#include "server/engine/scheduling/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/server/engine/parts.h"

namespace ovq::engine::test {
namespace {

using testing::ElementsAre;

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() {
    config_.model = parts_.model.Make();
    for (ModelVariant& variant : config_.model.variants) {
      variant.forward = [this, forward = variant.forward](const model::Batch& batch,
                                                          kernels::DeviceContext& context,
                                                          kernels::ScratchScope& scratch) {
        batch_ = batch;
        return forward(batch, context, scratch);
      };
    }
  }
  ~ExecutorTest() override {
    for (StateHandle& state : states_) parts_.pool.Release(state);
  }
  StateHandle& Acquire() {
    return states_.emplace_back(
        *parts_.pool.Acquire(parts_.model.layout(), kDefaultSlotCap, size_t{1} << 20));
  }

  Parts parts_;
  EngineConfig config_;
  model::Batch batch_;  // the last one
  const model::Sampler sampler_{{{.seed = 5}}, kVocab};
  std::deque<StateHandle> states_;
  Executor executor_{config_, *parts_.context, parts_.pool};
};

TEST_F(ExecutorTest, TokensLieEndToEndAndGiveWhatIsWanted) {
  StateHandle& answer = Acquire();
  StateHandle& score = Acquire();
  StateHandle& prompt = Acquire();
  const std::vector<int32_t> drawn = {42}, scored = {1, 2, 3}, part = {9, 8, 7, 6};
  BatchRun run;
  run.sequences = {{.state = &answer, .tokens = drawn, .decoding = true},
                   {.state = &score, .tokens = scored},
                   {.state = &prompt, .tokens = part}};
  run.sequences[0].wants_draws = {model::DrawRequest{.sampler = &sampler_}};
  run.sequences[1].wants_scores = 2;
  run.sequences[1].next = std::span(scored).subspan(1);
  executor_.Execute(run);
  EXPECT_THAT(batch_.token_ids, ElementsAre(42, 1, 2, 3, 9, 8, 7, 6));
  EXPECT_THAT(batch_.token_begin, ElementsAre(0, 1, 4, 8));
  EXPECT_THAT(batch_.start_pos, ElementsAre(0, 0, 0));
  EXPECT_THAT(batch_.slot_cap, ElementsAre(256, 256, 256));
  EXPECT_THAT(batch_.state, ElementsAre(answer.base, score.base, prompt.base));
  EXPECT_THAT(batch_.logits_indices, ElementsAre(0, 1, 2, 3)) << "nothing is wanted of the prompt";
  EXPECT_EQ(answer.position, 1);
  EXPECT_EQ(score.position, 3);
  EXPECT_EQ(prompt.position, 4);
  EXPECT_EQ(run.report.decode_tokens, 1);
  EXPECT_EQ(run.report.prefill_tokens, 7);
  EXPECT_EQ(run.report.dictionary_inserts + run.report.dictionary_merges, 4)
      << "one chunk of the prompt";

  ASSERT_EQ(run.sequences.size(), 3u);
  for (const BatchSequence& sequence : run.sequences) EXPECT_FALSE(sequence.failure);
  EXPECT_EQ(run.sequences[0].draws.size(), 1u);
  ASSERT_EQ(run.sequences[1].scores.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const model::TokenScore& row = run.sequences[1].scores[i];
    EXPECT_EQ(row.logprob.has_value(), i < 2) << "no token follows the last";
    EXPECT_EQ(row.top.size(), 2u);
  }
  EXPECT_TRUE(run.sequences[2].draws.empty());
}

TEST_F(ExecutorTest, TheLastTokenOfAPromptDrawsForEveryAnswer) {
  parts_.model.Script(6, 77);
  StateHandle& state = Acquire();
  const std::vector<int32_t> prompt = SomeTokens(6, 1);
  BatchRun run;
  run.sequences = {{.state = &state, .tokens = prompt}};
  run.sequences[0].wants_draws.assign(3, model::DrawRequest{.sampler = &sampler_});
  executor_.Execute(run);
  EXPECT_THAT(batch_.logits_indices, ElementsAre(5));
  ASSERT_EQ(run.sequences[0].draws.size(), 3u);
  for (const model::Sampled& drawn : run.sequences[0].draws) EXPECT_EQ(drawn.token_id, 77);
}

TEST_F(ExecutorTest, ACheckLooksAtTheLastToken) {
  StateHandle& state = Acquire();
  const std::vector<int32_t> prompt = SomeTokens(5, 1);
  BatchRun run;
  run.sequences = {{.state = &state, .tokens = prompt, .wants_check = true}};
  executor_.Execute(run);
  EXPECT_THAT(batch_.logits_indices, ElementsAre(4));
  EXPECT_TRUE(run.sequences[0].finite);
}

}  // namespace
}  // namespace ovq::engine::test
