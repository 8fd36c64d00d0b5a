// Answers do not depend on other requests in the batch, on how the prompt is cut, or on threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "server/engine/common/error_facts.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GenerateRequest Numbered(int i) {
  GenerateRequest request = SampleRequest(SomeTokens(1 + i * 7 % 50, 100 + i), 3 + i % 23, 40 + i);
  request.output = {.logprobs = true, .top_logprobs = i % 4};
  request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
  request.sampling.repetition_penalty = i % 5 == 0 ? 1.3f : 1.0f;
  if (i % 2 == 0) request.slot_cap = 16 + i;
  return request;
}

void ExpectSame(const Answer& a, const Answer& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.logprobs, b.logprobs) << what;
  EXPECT_EQ(a.text, b.text) << what;
  ASSERT_EQ(a.top.size(), b.top.size()) << what;
  for (size_t i = 0; i < a.top.size(); ++i) {
    ASSERT_EQ(a.top[i].size(), b.top[i].size()) << what;
    for (size_t j = 0; j < a.top[i].size(); ++j) {
      EXPECT_EQ(a.top[i][j].token_id, b.top[i][j].token_id) << what;
      EXPECT_EQ(a.top[i][j].logprob, b.top[i][j].logprob) << what;
    }
  }
}

TEST(Generate, RequestsOfTwoVariantsTogetherAnswerAsEachAlone) {
  const auto numbered = [](int i) {
    GenerateRequest request = Numbered(i);
    if (i % 3 == 0) request.variant = "exact";
    return request;
  };
  std::vector<Answer> alone;
  {
    TestEngine engine({}, {.exact_too = true});
    for (int i = 0; i < 20; ++i) alone.push_back(engine.Run(numbered(i)).of[0]);
    EXPECT_NE(engine.Run(Numbered(0)).of[0].tokens, alone[0].tokens) << "memories differ";
  }
  EngineOptions options;
  options.max_batch_tokens = 7;
  TestEngine engine(options, {.exact_too = true});
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(engine.Start(numbered(i)));
  for (int i = 0; i < 20; ++i) {
    const Answers answers = ReadAll(*streams[i]);
    EXPECT_TRUE(answers.status.ok()) << answers.status;
    ExpectSame(answers.of[0], alone[i], "request " + std::to_string(i));
  }
}

TEST(Generate, SixtyFourTogetherAnswerAsEachAlone) {
  std::vector<Answer> alone;
  {
    TestEngine engine;
    for (int i = 0; i < 64; ++i) alone.push_back(engine.Run(Numbered(i)).of[0]);
  }
  for (int32_t max_batch_tokens : {512, 7}) {
    EngineOptions options;
    options.max_batch_tokens = max_batch_tokens;
    TestEngine engine(options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (int i = 0; i < 64; ++i) streams.push_back(engine.Start(Numbered(i)));
    for (int i = 0; i < 64; ++i) {
      const Answers answers = ReadAll(*streams[i]);
      EXPECT_TRUE(answers.status.ok());
      ASSERT_TRUE(answers.of[0].finished);
      EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kLength);
      EXPECT_EQ(static_cast<int64_t>(answers.of[0].tokens.size()), Numbered(i).stop.max_tokens);
      EXPECT_EQ(answers.of[0].logprobs.size(), answers.of[0].tokens.size());
      ExpectSame(answers.of[0], alone[i], "request " + std::to_string(i));
    }
    EXPECT_LE(engine.model().max_rows(), max_batch_tokens);
    EXPECT_EQ(engine.SettledStats().state_bytes_committed, 0u);
  }
}

TEST(Generate, PromptsMayBeCutAnywhere) {
  const GenerateRequest request = SampleRequest(SomeTokens(173, 3), 9);
  TestEngine whole;
  const Answer expected = whole.Run(request).of[0];
  for (int32_t max_batch_tokens : {1, 2, 3, 50, 172, 173, 174}) {
    EngineOptions options;
    options.max_batch_tokens = max_batch_tokens;
    TestEngine engine(options);
    ExpectSame(engine.Run(request).of[0], expected, std::to_string(max_batch_tokens));
  }
}

TEST(Generate, StartedAndUsage) {
  TestEngine engine;
  const Answers answers = engine.Run(SampleRequest(SomeTokens(40, 1), 5, 77));
  ASSERT_TRUE(answers.started);
  EXPECT_EQ(answers.started->seed, 77u);
  EXPECT_EQ(answers.started->prompt_tokens, 40);
  EXPECT_EQ(answers.started->cached_tokens, 0);
  EXPECT_EQ(answers.started->session_id, "");
  const Usage& usage = answers.of[0].finished->usage;
  EXPECT_EQ(usage.prompt_tokens, 40);
  EXPECT_EQ(usage.generated_tokens, 5);
  EXPECT_EQ(usage.position, 45);
  EXPECT_EQ(usage.state_bytes,
            static_cast<int64_t>(engine.model().layout().bytes_at(44, kDefaultSlotCap)));
  EXPECT_EQ(usage.merged_tokens, 44 - 44 * kDefaultSlotCap / (44 + kDefaultSlotCap));
  EXPECT_GE(usage.queue_time, absl::ZeroDuration());
  EXPECT_GE(usage.prefill_time, absl::ZeroDuration());
  EXPECT_GE(usage.decode_time, absl::ZeroDuration());
}

TEST(Generate, SeedsAreDrawnWhenNoneIsGiven) {
  TestEngine engine;
  const uint64_t a = engine.Run(SampleRequest({1}, 1, 0)).started->seed;
  const uint64_t b = engine.Run(SampleRequest({1}, 1, 0)).started->seed;
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  GenerateRequest zero = SampleRequest({1}, 1, 0);
  zero.seed_given = true;
  EXPECT_EQ(engine.Run(zero).started->seed, 0u);
}

TEST(Generate, CompletionsAreThoseOfSeedsCountedUp) {
  TestEngine engine;
  GenerateRequest request = SampleRequest(SomeTokens(90, 8), 12, 500);
  request.output.logprobs = true;
  std::vector<Answer> single;
  for (int i = 0; i < 5; ++i) {
    request.sampling.seed = 500 + static_cast<uint64_t>(i);
    single.push_back(engine.Run(request).of[0]);
  }
  EXPECT_NE(single[0].tokens, single[1].tokens);
  request.sampling.seed = 500;
  request.n = 5;
  const Answers answers = engine.Run(request);
  EXPECT_TRUE(answers.status.ok());
  for (int i = 0; i < 5; ++i) {
    ExpectSame(answers.of[i], single[i], "completion " + std::to_string(i));
    ASSERT_TRUE(answers.of[i].finished);
    EXPECT_EQ(answers.of[i].finished->usage.generated_tokens, 12);
    EXPECT_EQ(answers.of[i].finished->usage.position, 102);
  }
  const EngineStats stats = engine.SettledStats();
  EXPECT_EQ(stats.state_bytes_committed, 0u);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
}

TEST(Generate, NothingToGenerate) {
  TestEngine engine;
  for (int64_t length : {1, 2, 30}) {
    GenerateRequest request = SampleRequest(SomeTokens(length, 8), 0);
    request.n = 2;
    const Answers answers = engine.Run(request);
    EXPECT_TRUE(answers.status.ok());
    for (const Answer& answer : answers.of) {
      EXPECT_TRUE(answer.tokens.empty());
      EXPECT_EQ(answer.finished->reason, FinishReason::kLength);
      EXPECT_EQ(answer.finished->usage.position, length);
    }
  }
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

TEST(Generate, IsCancelledWhenTheFirstOfItsAnswersHasEnded) {
  TestEngine engine;
  GenerateRequest request = SampleRequest(SomeTokens(9, 8), 12, 500);
  request.n = 2;
  const Answers known = engine.Run(request);
  const int32_t stop = known.of[0].tokens[1];
  ASSERT_EQ(std::ranges::count(known.of[1].tokens, stop), 0);
  request.stop.token_ids = {stop};
  request.stop.max_tokens = 1000;
  const std::shared_ptr<TokenStream> stream = engine.Start(request, /*capacity=*/4);
  for (bool ended = false; !ended;) {
    const std::optional<StreamEvent> event = Pop(*stream);
    ASSERT_TRUE(event);
    ended = event->finished && event->finished->index == 0;
  }
  stream->Cancel();
  const Answers rest = ReadAll(*stream, 2);
  EXPECT_TRUE(absl::IsCancelled(rest.status)) << rest.status;
  EXPECT_FALSE(rest.of[0].finished);
  ASSERT_TRUE(rest.of[1].finished);
  EXPECT_EQ(rest.of[1].finished->reason, FinishReason::kCancelled);
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

// --- stop conditions ---

TEST(Stop, StringAcrossTokensIsNotSent) {
  // Tokens are bytes, so the stop string's two-byte characters are split too.
  const auto script = [](FakeModel& model) { model.Script(3, "Gr\xc3\xbc\xc3\x9f dich, Welt"); };
  TestEngine engine({}, {}, {}, script);
  for (bool include : {false, true}) {
    GenerateRequest request = SampleRequest({1, 2, 3}, 100);
    request.stop.strings = {"nie", "\xc3\x9f di"};
    request.stop.include_stop_text = include;
    const Answers answers = engine.Run(request);
    const Answer& answer = answers.of[0];
    EXPECT_EQ(answer.text, include ? "Gr\xc3\xbc\xc3\x9f di" : "Gr\xc3\xbc");
    EXPECT_EQ(answer.tokens.size(), 9u) << "every token is told, sent text or not";
    ASSERT_TRUE(answer.finished);
    EXPECT_EQ(answer.finished->reason, FinishReason::kStop);
    EXPECT_EQ(answer.finished->matched_stop, "\xc3\x9f di");
    EXPECT_FALSE(answer.finished->matched_token_id);
  }
}

TEST(Stop, TextThatIsASpecialToken) {
  const auto script = [](FakeModel& model) { model.Script(3, "so\xc3\x07!"); };
  TestEngine engine({}, {}, {}, script);
  for (bool include : {false, true}) {
    GenerateRequest request = SampleRequest({1, 2, 3}, 100);
    request.stop.strings = {"<|x|>", "y"};
    request.stop.special_tokens = {{7, "<|x|>"}};
    request.stop.include_stop_text = include;
    const Answer answer = engine.Run(request).of[0];
    EXPECT_EQ(answer.text, include ? "so\xef\xbf\xbd<|x|>" : "so\xef\xbf\xbd");
    EXPECT_EQ(answer.tokens.size(), 4u);
    ASSERT_TRUE(answer.finished);
    EXPECT_EQ(answer.finished->reason, FinishReason::kStop);
    EXPECT_EQ(answer.finished->matched_stop, "<|x|>");
  }
}

TEST(Stop, HeldBackTextComesWithTheEnd) {
  const auto script = [](FakeModel& model) { model.Script(1, "one EN"); };
  TestEngine engine({}, {}, {}, script);
  GenerateRequest request = SampleRequest({5}, 6);
  request.stop.strings = {"END"};
  const Answer answer = engine.Run(request).of[0];
  EXPECT_EQ(answer.text, "one EN");
  EXPECT_EQ(answer.finished->reason, FinishReason::kLength);
  EXPECT_EQ(answer.finished->matched_stop, "");
}

TEST(Stop, UnfinishedCharacterAtTheEndIsReplaced) {
  TestEngine engine({}, {}, {}, [](FakeModel& model) { model.Script(1, "a\xc3\xbc"); });
  EXPECT_EQ(engine.Run(SampleRequest({5}, 2)).of[0].text, "a\xef\xbf\xbd");
  EXPECT_EQ(engine.Run(SampleRequest({5}, 3)).of[0].text, "a\xc3\xbc");
}

TEST(Stop, ACharacterThatThePromptBeganIsWhole) {
  TestEngine engine({}, {}, {}, [](FakeModel& model) { model.Script(2, "\xbc!"); });
  EXPECT_EQ(engine.Run(SampleRequest({'a', 0xc3}, 2)).of[0].text, "\xc3\xbc!");
}

TEST(Stop, EndOfSequenceCountsAndHasNoText) {
  const auto script = [](FakeModel& model) {
    model.Script(1, "ab");
    model.Script(3, kEos);
  };
  TestEngine engine({}, {}, {}, script);
  GenerateRequest request = SampleRequest({5}, 50);
  request.stop.include_stop_text = true;
  const Answer answer = engine.Run(request).of[0];
  EXPECT_THAT(answer.tokens, ElementsAre('a', 'b', kEos));
  EXPECT_EQ(answer.text, "ab");
  EXPECT_EQ(answer.finished->reason, FinishReason::kStop);
  EXPECT_EQ(answer.finished->matched_token_id, kEos);
  EXPECT_EQ(answer.finished->usage.generated_tokens, 3);

  request.stop.ignore_eos = true;
  const Answer going_on = engine.Run(request).of[0];
  EXPECT_EQ(going_on.tokens.size(), 50u);
  EXPECT_THAT(going_on.tokens, testing::Not(testing::Contains(kEos)));
}

TEST(Stop, TokenIdsAndMinTokens) {
  const auto script = [](FakeModel& model) { model.Script(1, "abXcdXef"); };
  TestEngine engine({}, {}, {}, script);
  GenerateRequest request = SampleRequest({5}, 50);
  request.stop.token_ids = {'X'};
  EXPECT_EQ(engine.Run(request).of[0].text, "ab");
  EXPECT_EQ(engine.Run(request).of[0].finished->matched_token_id, 'X');
  request.stop.include_stop_text = true;
  EXPECT_EQ(engine.Run(request).of[0].text, "abX");
  request.stop.min_tokens = 3;  // the third may not be X, the sixth may
  const Answer later = engine.Run(request).of[0];
  EXPECT_EQ(later.tokens.size(), 6u);
  EXPECT_NE(later.tokens[2], 'X');
  EXPECT_EQ(later.tokens[5], 'X');
}

TEST(Stop, CompletionsEndApart) {
  TestEngine engine;
  GenerateRequest request = SampleRequest(SomeTokens(9, 4), 40, 9);
  for (int i = 0; i < 60; ++i) request.stop.token_ids.push_back(i * 4);
  request.n = 8;
  const Answers answers = engine.Run(request);
  request.n = 1;
  std::vector<size_t> lengths;
  for (int i = 0; i < 8; ++i) {
    request.sampling.seed = 9 + static_cast<uint64_t>(i);
    ExpectSame(answers.of[i], engine.Run(request).of[0], std::to_string(i));
    lengths.push_back(answers.of[i].tokens.size());
  }
  EXPECT_NE(*std::min_element(lengths.begin(), lengths.end()),
            *std::max_element(lengths.begin(), lengths.end()));
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

// --- refusals; see validate_test.cc for invalid requests ---

TEST(Submit, RefusesWhatCannotBeRun) {
  TestEngine engine;
  const auto submit = [&](const GenerateRequest& request) {
    return engine->Submit(request, std::make_shared<TokenStream>());
  };
  const absl::Status bad = submit(SampleRequest({1, 2, 258}, 10));
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorFacts(bad).field, "prompt.token_ids.ids[2]");
  GenerateRequest unknown = SampleRequest({1, 2}, 10);
  unknown.session_id = "ab";
  const absl::Status missing = submit(unknown);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "session ab: not found");
}

TEST(Submit, ModelWithoutText) {
  TestEngine engine({}, {.with_text = false});
  GenerateRequest request = SampleRequest({1, 2}, 4);
  EXPECT_EQ(engine.Run(request).of[0].tokens.size(), 4u);
  request.stop.strings = {"x"};
  EXPECT_EQ(engine->Submit(request, std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ovq::engine::test
