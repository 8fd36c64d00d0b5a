// Constraints do to an answer what they say, and forms are compiled or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/engine/common/form_progress.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/forms.h"
#include "tests/server/engine/stepping_clock.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

// --- what a constraint does ---

TEST(Constrained, TextsWithoutAChoiceTakeNoStepsOfTheirOwn) {
  const std::string text = "{\"a name that is long\": [1, 2, 3]}";
  for (const bool forces : {false, true}) {
    TestEngine engine(FormOptions(forces));
    GenerateRequest request = Constrained(Compiled(AnswerForm::Literal(text)), 200);
    request.output = {.logprobs = true, .top_logprobs = 2};
    const Answers answers = engine.Run(request);
    ASSERT_TRUE(answers.status.ok()) << answers.status;
    EXPECT_EQ(answers.of[0].text, text);
    EXPECT_EQ(answers.of[0].tokens.size(), text.size()) << "no token for the end";
    EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kStop);
    for (const float logprob : answers.of[0].logprobs) EXPECT_EQ(logprob, 0);
    for (const auto& top : answers.of[0].top) EXPECT_EQ(top.size(), 1u);
    const int64_t steps = engine.model().gate().steps();
    const ConstraintStats stats = engine.SettledStats().constraints;
    if (forces) {
      EXPECT_EQ(steps, 2) << "the prompt's, and one for all that is forced";
      EXPECT_EQ(stats.forced_tokens, std::ssize(text) - 2);
    } else {
      EXPECT_EQ(steps, std::ssize(text));
      EXPECT_EQ(stats.forced_tokens, 0);
    }
    EXPECT_EQ(stats.matchers, 1);
    EXPECT_GT(stats.masks, 0);
    EXPECT_GT(stats.bytes, 0u);
  }
}

TEST(Constrained, LogprobsAreOfTheAllowedTokens) {
  TestEngine engine;
  GenerateRequest request = Constrained(
      Compiled(AnswerForm::Choice({AnswerForm::Literal("x"), AnswerForm::Literal("y")})), 5);
  request.output = {.logprobs = true, .top_logprobs = 5};
  const Answers answers = engine.Run(request);
  ASSERT_EQ(answers.of[0].top[0].size(), 2u);
  double sum = 0;
  for (const model::TokenLogprob& one : answers.of[0].top[0]) sum += std::exp(one.logprob);
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(Constrained, LimitsOfTheAnswerKeepTheirMeaning) {
  TestEngine engine;
  const AnswerForm digits = AnswerForm::Repeat(
      AnswerForm::Choice({AnswerForm::Literal("1"), AnswerForm::Literal("2")}), 1, std::nullopt);
  GenerateRequest request = Constrained(Compiled(digits), 30);
  Answers answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kLength);
  EXPECT_EQ(answers.of[0].tokens.size(), 30u);

  request.sampling.logit_bias[kEos] = 90;  // the model ends as soon as it may
  answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].tokens.size(), 2u);
  EXPECT_EQ(answers.of[0].finished->matched_token_id, kEos);
  request.stop.min_tokens = 7;
  EXPECT_EQ(engine.Run(request).of[0].tokens.size(), 8u);
  request.stop.ignore_eos = true;
  EXPECT_EQ(engine.Run(request).of[0].finished->reason, FinishReason::kLength);

  // Nothing is left to draw: the answer ends by itself where its form may end.
  request = Constrained(Compiled(AnswerForm::Repeat(AnswerForm::Literal("ab"), 1, 1)), 30);
  request.session_id = engine.NewSession().id;
  request.stop.ignore_eos = true;
  answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].text, "ab");
  EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kStop);

  // A stop string may end it early.
  request = Constrained(Compiled(AnswerForm::Literal("one two three")), 30);
  request.stop.strings = {"two"};
  answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].text, "one ");
  EXPECT_EQ(answers.of[0].finished->matched_stop, "two");
}

TEST(Constrained, WhereNothingCanFollowTheErrorNamesTheConstraint) {
  TestEngine engine;
  GenerateRequest request = Constrained(Compiled(AnswerForm::Literal("abc")), 30);
  request.stop.token_ids = {'b'};
  request.stop.min_tokens = 10;  // "b" is not drawn, and the form needs it
  const Answers answers = engine.Run(request);
  EXPECT_TRUE(absl::IsFailedPrecondition(answers.status)) << answers.status;
  EXPECT_THAT(std::string(answers.status.message()), HasSubstr("constraint"));
  EXPECT_EQ(engine.Run(Constrained(Compiled(AnswerForm::Literal("abc")), 30)).of[0].text, "abc");
}

TEST(Constrained, AGrammarThatIsTooAmbiguousEndsTheAnswer) {
  TestEngine engine;
  const AnswerForm item = AnswerForm::Choice(
      {AnswerForm::Literal("a"), AnswerForm::Literal("aa"), AnswerForm::Literal("aaa")});
  const AnswerForm form =
      AnswerForm::Sequence({AnswerForm::Repeat(item, 0, 100'000), AnswerForm::Literal(".")});
  GenerateRequest request = Constrained(Compiled(form), 5000);
  request.sampling.logit_bias['a'] = 90;
  const Answers answers = engine.Run(request);
  EXPECT_TRUE(absl::IsResourceExhausted(answers.status)) << answers.status;
  EXPECT_THAT(std::string(answers.status.message()), HasSubstr("constraint"));
  EXPECT_GT(answers.of[0].tokens.size(), 100u);
  EXPECT_EQ(engine.Run(Constrained(Compiled(AnswerForm::Literal("abc")), 30)).of[0].text, "abc");
}

TEST(Constrained, AFormKnowsHowLongATokenTakes) {
  const auto step = std::make_shared<std::atomic<int64_t>>(1000);
  FakeModel model;
  MatcherCache matchers(model.Make().vocabulary, size_t{1} << 20, SteppingClock(step));
  FormProgress form(Compiled(AnswerForm::Literal("abcdef")), matchers, /*has_end=*/false);
  EXPECT_EQ(form.token_time(), absl::Milliseconds(1)) << "a mask";
  ASSERT_TRUE(form.Add('a').ok());
  EXPECT_EQ(form.token_time(), absl::Milliseconds(2)) << "a place and a mask";
  const std::vector<int32_t> drafted = {'b', 'c'};
  EXPECT_EQ(form.Draft(drafted), 2);
  ASSERT_TRUE(form.Add('b').ok());
  EXPECT_EQ(form.token_time(), absl::Milliseconds(6)) << "and those of the draft";
  *step = 0;
  ASSERT_TRUE(form.Add('c').ok());
  EXPECT_EQ(form.token_time(), absl::Milliseconds(4.5)) << "it is forgotten by and by";
}

TEST(Constrained, AnswersWhoseFormTakesLongBeginOneAfterAnother) {
  const AnswerForm letters = AnswerForm::Repeat(
      AnswerForm::Choice({AnswerForm::Literal("x"), AnswerForm::Literal("y")}), 1, 40);
  GenerateRequest request = Constrained(Compiled(letters), 12);
  request.n = 5;
  const Answers expected = TestEngine().Run(request);
  EngineOptions options;
  options.clock = SteppingClock(3000);
  for (const bool beside_another : {false, true}) {
    SCOPED_TRACE(beside_another);
    TestEngine engine(options);
    std::shared_ptr<TokenStream> other;
    if (beside_another) other = engine.Start(SampleRequest(SomeTokens(20, 4), 2000, 2), 4000);
    const Answers answers = engine.Run(request);
    ASSERT_TRUE(answers.status.ok()) << answers.status;
    ASSERT_EQ(answers.of.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(answers.of[i].tokens, expected.of[i].tokens) << i;
      EXPECT_EQ(answers.of[i].finished->reason, expected.of[i].finished->reason) << i;
    }
  }
}

TEST(Constrained, AModelWithoutTextRefuses) {
  TestEngine engine({}, {.with_text = false});
  const Answers answers = ReadAll(*[&] {
    auto stream = std::make_shared<TokenStream>();
    const absl::Status status =
        engine->Submit(Constrained(Compiled(AnswerForm::Literal("a")), 3), stream);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("constraint"));
    stream->Close(status);
    return stream;
  }());
  EXPECT_FALSE(answers.status.ok());
}

// --- forms ---

TEST(AnswerConstraint, BytesOfAFormMakeItAgain) {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const AnswerForm form = RandomForm(random, 3);
    const Constraint made = Compiled(form);
    const auto again = AnswerConstraint::Decode(made->encoded(), {}, SomeMemory(), "");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->encoded(), made->encoded());
    EXPECT_EQ((*again)->digest(), made->digest());
    for (size_t cut = 0; cut < made->encoded().size(); ++cut) {
      EXPECT_TRUE(absl::IsDataLoss(
          AnswerConstraint::Decode(made->encoded().substr(0, cut), {}, SomeMemory(), "").status()));
    }
    EXPECT_TRUE(absl::IsDataLoss(
        AnswerConstraint::Decode(made->encoded() + "x", {}, SomeMemory(), "").status()));
  }
}

TEST(AnswerConstraint, RefusesWhatIsNoForm) {
  const auto status = [](const AnswerForm& form) {
    return AnswerConstraint::Make(form, {}, SomeMemory(), "").status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Through(""))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Through(std::string(257, 'x')))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Choice({}))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Repeat(AnswerForm::Literal("a"), 3, 2))));
  AnswerForm deep = AnswerForm::Literal("a");
  for (int i = 0; i < 20; ++i) deep = AnswerForm::Sequence({deep});
  EXPECT_TRUE(absl::IsInvalidArgument(status(deep)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      status(AnswerForm::Sequence(std::vector<AnswerForm>(5000, AnswerForm::Literal("a"))))));
  EXPECT_TRUE(
      absl::IsResourceExhausted(status(AnswerForm::Literal(std::string(kMaxFormBytes, 'a')))));
}

TEST(AnswerConstraint, ItsBytesAreTheClientsUntilItGoes) {
  const auto memory = std::make_shared<ByteBudget>(size_t{1} << 20);
  absl::StatusOr<Constraint> made =
      AnswerConstraint::Make(AnswerForm::Literal(std::string(1000, 'a')), {}, memory, "me");
  ASSERT_TRUE(made.ok());
  EXPECT_GT(memory->held(), 1000u);
  *made = nullptr;
  EXPECT_EQ(memory->held(), 0u);
  const auto little = std::make_shared<ByteBudget>(600);
  EXPECT_TRUE(absl::IsResourceExhausted(
      AnswerConstraint::Make(AnswerForm::Literal(std::string(1000, 'a')), {}, little, "")
          .status()));
  EXPECT_EQ(little->held(), 0u);
}

}  // namespace
}  // namespace ovq::engine::test
