// Scores, draining, statistics and events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

absl::StatusOr<ScoreResult> Score(TestEngine& engine, ScoreRequest request,
                                  std::shared_ptr<CancelSignal> cancel = nullptr) {
  Receiver<absl::StatusOr<ScoreResult>> receiver;
  const absl::Status status =
      engine->SubmitScore(std::move(request), std::move(cancel), receiver.callback());
  if (!status.ok()) return status;
  return receiver.Wait();
}

void ExpectSame(const ScoreResult& a, const ScoreResult& b) {
  ASSERT_EQ(a.rows.size(), b.rows.size());
  for (size_t i = 0; i < a.rows.size(); ++i) {
    EXPECT_EQ(a.rows[i].logprob, b.rows[i].logprob) << i;
    ASSERT_EQ(a.rows[i].top.size(), b.rows[i].top.size()) << i;
    for (size_t j = 0; j < a.rows[i].top.size(); ++j) {
      EXPECT_EQ(a.rows[i].top[j].token_id, b.rows[i].top[j].token_id) << i;
      EXPECT_EQ(a.rows[i].top[j].logprob, b.rows[i].top[j].logprob) << i;
    }
  }
}

TEST(Score, IsTheLogprobOfEveryGivenToken) {
  TestEngine engine;
  GenerateRequest generate = SampleRequest(SomeTokens(30, 1), 25);
  generate.output = {.logprobs = true, .top_logprobs = 3};
  const Answer answer = engine.Run(generate).of[0];
  ScoreRequest request;
  request.prompt = generate.prompt;
  request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  request.top_logprobs = 3;
  const ScoreResult result = *Score(engine, request);
  ASSERT_EQ(result.rows.size(), 55u);
  for (int i = 0; i < 25; ++i) {
    const model::TokenScore& row = result.rows[29 + i];
    EXPECT_EQ(row.logprob, answer.logprobs[i]) << i;
    ASSERT_EQ(row.top.size(), 3u);
    for (int j = 0; j < 3; ++j) {
      EXPECT_EQ(row.top[j].token_id, answer.top[i][j].token_id);
      EXPECT_EQ(row.top[j].logprob, answer.top[i][j].logprob);
    }
  }
  EXPECT_FALSE(result.rows[54].logprob) << "no token is known after the last";
  EXPECT_EQ(result.state_bytes,
            static_cast<int64_t>(engine.model().layout().bytes_at(55, kDefaultSlotCap)));
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);

  EngineOptions options;
  options.max_batch_tokens = 7;
  TestEngine small(options);
  ExpectSame(*Score(small, request), result);
  EXPECT_EQ(small.model().max_rows(), 7);
}

// One batch has tokens of scores, first tokens of several answers and later ones.
TEST(Score, SharesStepsWithGeneration) {
  ScoreRequest score;
  score.prompt = SomeTokens(40, 6);
  score.top_logprobs = 2;
  GenerateRequest several = SampleRequest(SomeTokens(17, 2), 9, 70);
  several.n = 3;
  several.output = {.logprobs = true, .top_logprobs = 2};
  const GenerateRequest single = SampleRequest(SomeTokens(5, 3), 30, 80);
  TestEngine alone;
  const ScoreResult expected_score = *Score(alone, score);
  const Answers expected_several = alone.Run(several);
  const Answers expected_single = alone.Run(single);

  EngineOptions options;
  options.max_batch_tokens = 13;
  TestEngine engine(options);
  engine.model().gate().CloseAt(1);
  const std::shared_ptr<TokenStream> first = engine.Start(single);
  engine.model().gate().AwaitEntered(1);
  Receiver<absl::StatusOr<ScoreResult>> receiver;
  ASSERT_TRUE(engine->SubmitScore(score, nullptr, receiver.callback()).ok());
  const std::shared_ptr<TokenStream> second = engine.Start(several);
  engine.model().gate().Open();

  const absl::StatusOr<ScoreResult> result = receiver.Wait();
  ASSERT_TRUE(result.ok());
  ExpectSame(*result, expected_score);
  EXPECT_EQ(ReadAll(*first).of[0].tokens, expected_single.of[0].tokens);
  const Answers answers = ReadAll(*second, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answers.of[i].tokens, expected_several.of[i].tokens) << i;
    EXPECT_EQ(answers.of[i].logprobs, expected_several.of[i].logprobs) << i;
    ASSERT_EQ(answers.of[i].top.size(), 9u);
    EXPECT_EQ(answers.of[i].top[8][1].logprob, expected_several.of[i].top[8][1].logprob) << i;
  }
}

TEST(Score, SingleTokenAndWholeVocabulary) {
  TestEngine engine;
  ScoreRequest request;
  request.prompt = {7};
  request.top_logprobs = static_cast<int>(kVocab);
  const ScoreResult result = *Score(engine, request);
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_FALSE(result.rows[0].logprob);
  EXPECT_EQ(result.rows[0].top.size(), static_cast<size_t>(kVocab));
}

TEST(Score, LongTextInOneCall) {
  TestEngine engine;
  ScoreRequest request;
  request.prompt = SomeTokens(65536, 3);
  EXPECT_EQ(Score(engine, request)->rows.size(), 65536u);
  EXPECT_LE(engine.model().max_rows(), engine->options().max_batch_tokens);
}

TEST(Score, Refusals) {
  TestEngine engine;
  ScoreRequest request;
  EXPECT_EQ(Score(engine, request).status().code(), absl::StatusCode::kInvalidArgument);
  request.prompt = {1, 258};
  EXPECT_THAT(std::string(Score(engine, request).status().message()),
              HasSubstr("prompt.token_ids.ids[1]"));
  request.prompt = {1};
  request.top_logprobs = 259;
  EXPECT_EQ(Score(engine, request).status().code(), absl::StatusCode::kInvalidArgument);
  request.top_logprobs = 258;
  request.prompt = SomeTokens(37500, 1);
  const absl::Status huge = Score(engine, request).status();
  EXPECT_EQ(huge.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(huge.message()),
              HasSubstr("top_logprobs: expected at most 195 for 37500"));
  request.prompt = SomeTokens(100000, 1);
  request.top_logprobs = 0;
  auto cancelled = std::make_shared<CancelSignal>();
  cancelled->Cancel();
  EXPECT_EQ(Score(engine, request, cancelled).status().code(), absl::StatusCode::kCancelled);
  request.deadline = std::chrono::steady_clock::now();
  EXPECT_EQ(Score(engine, request).status().code(), absl::StatusCode::kDeadlineExceeded);
}

// The engine sleeps until the cancel signal wakes it; it does not poll.
TEST(Score, CancellingOneThatWaitsWakesTheEngine) {
  EngineOptions options;
  options.state_memory_bytes = FakeModel().layout().bytes_cap(kDefaultSlotCap);
  TestEngine engine(options);
  engine.NewSession();  // uses all memory
  ScoreRequest request;
  request.prompt = SomeTokens(9, 1);
  const auto cancel = std::make_shared<CancelSignal>();
  Receiver<absl::StatusOr<ScoreResult>> receiver;
  ASSERT_TRUE(engine->SubmitScore(request, cancel, receiver.callback()).ok());
  EXPECT_EQ(engine.SettledStats().requests_waiting, 1);
  cancel->Cancel();
  EXPECT_EQ(receiver.Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.SettledStats().requests_waiting, 0);
}

TEST(Drain, LetsRunningRequestsFinishAndRefusesNewOnes) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  engine.model().gate().CloseAt(1);
  const std::shared_ptr<TokenStream> stream = engine.Start(SampleRequest(SomeTokens(5, 1), 50));
  engine.model().gate().AwaitEntered(1);
  bool by_themselves = false;
  std::thread drain([&] { by_themselves = engine->Drain(absl::InfiniteDuration()); });
  // Once the drain has begun, every kind of work is refused.
  GenerateRequest turn = SampleRequest({1}, 1);
  turn.session_id = "unknown";
  absl::Status refused;
  do {
    refused = engine->Submit(turn, std::make_shared<TokenStream>());
  } while (refused.code() == absl::StatusCode::kNotFound);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine->Submit(SampleRequest({1}, 1), std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kUnavailable);
  engine.model().gate().Open();
  const Answers answers = ReadAll(*stream);
  EXPECT_TRUE(answers.status.ok());
  EXPECT_EQ(answers.of[0].tokens.size(), 50u);
  drain.join();
  EXPECT_TRUE(by_themselves);
  Receiver<absl::StatusOr<SessionInfo>> created;
  engine->sessions().Create({}, created.callback());
  EXPECT_EQ(created.Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine->sessions().Get(id, "").ok()) << "sessions stay to be looked at";
}

TEST(Drain, EndsTheRestWhenTheTimeIsUp) {
  FakeModel probe;
  EngineOptions options;
  options.state_memory_bytes = probe.layout().bytes_cap(kDefaultSlotCap);
  TestEngine engine(options);
  const std::shared_ptr<TokenStream> running = engine.Start(SampleRequest({1}, INT64_MAX), 2);
  const std::shared_ptr<TokenStream> queued = engine.Start(SampleRequest({1}, INT64_MAX), 2);
  while (!running->full()) engine.SettledStats();
  EXPECT_FALSE(engine->Drain(absl::Milliseconds(5)));
  EXPECT_EQ(ReadAll(*running).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadAll(*queued).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
  EXPECT_TRUE(engine->Drain(absl::ZeroDuration()));
}

TEST(Drain, DestructionEndsEverything) {
  TestEngine engine;
  engine.NewSession();
  const std::shared_ptr<TokenStream> stream = engine.Start(SampleRequest({1}, INT64_MAX), 2);
  engine.Destroy();
  EXPECT_EQ(ReadAll(*stream).status.code(), absl::StatusCode::kUnavailable);
  stream->Cancel();  // the stream may outlive the engine
}

// Counters written on the engine thread and read after the engine is destroyed.
struct Counts {
  int steps = 0, prefill_tokens = 0, decode_tokens = 0, first = 0, next = 0, rejected = 0;
  absl::Duration between_tokens;
  std::vector<absl::Duration> per_token;
  std::vector<RequestReport> finished;
  std::vector<std::string> sessions;
};

TEST(Events, CountWhatHappened) {
  Counts counts;
  EngineEvents events;
  events.step = [&](const IterationReport& report) {
    ++counts.steps;
    counts.prefill_tokens += report.prefill_tokens;
    counts.decode_tokens += report.decode_tokens;
  };
  events.first_token = [&](absl::Duration) { ++counts.first; };
  events.next_token = [&](absl::Duration time) {
    ++counts.next;
    counts.between_tokens += time;
  };
  events.time_per_token = [&](absl::Duration time) { counts.per_token.push_back(time); };
  events.request_finished = [&](const RequestReport& report) { counts.finished.push_back(report); };
  events.rejected = [&](RejectReason) { ++counts.rejected; };
  events.session_event = [&](const SessionReport& r) { counts.sessions.push_back(r.event); };
  EngineOptions options;
  options.state_memory_bytes = size_t{1} << 20;
  TestEngine engine(options, {}, std::move(events));

  engine.Run(SampleRequest(SomeTokens(30, 1), 10));
  GenerateRequest two = SampleRequest(SomeTokens(20, 1), 5);
  two.n = 2;
  engine.Run(two);
  ScoreRequest score;
  score.prompt = SomeTokens(15, 1);
  EXPECT_TRUE(Score(engine, score).ok());
  const std::string id = engine.NewSession().id;
  EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
  GenerateRequest huge = SampleRequest({1}, 1000000);
  huge.slot_cap = 4096;
  huge.n = 64;
  EXPECT_EQ(engine->Submit(huge, std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kResourceExhausted);
  engine.SettledStats();
  engine.Destroy();

  EXPECT_EQ(counts.prefill_tokens, 30 + 20 + 15);
  EXPECT_EQ(counts.decode_tokens, 9 + 2 * 4);
  EXPECT_EQ(counts.steps, 1 + 9 + 1 + 4 + 1);
  EXPECT_EQ(counts.first, 2);
  EXPECT_EQ(counts.next, 9 + 2 * 4);
  ASSERT_EQ(counts.per_token.size(), 3u);
  const absl::Duration per_token =
      9 * counts.per_token[0] + 4 * (counts.per_token[1] + counts.per_token[2]);
  EXPECT_LT(absl::AbsDuration(counts.between_tokens - per_token), absl::Nanoseconds(20));
  EXPECT_EQ(counts.rejected, 1);
  EXPECT_THAT(counts.sessions, testing::ElementsAre("open", "close"));
  ASSERT_EQ(counts.finished.size(), 3u);
  EXPECT_EQ(counts.finished[0].usage.generated_tokens, 10);
  EXPECT_EQ(counts.finished[1].usage.generated_tokens, 10);
  EXPECT_FALSE(counts.finished[1].score);
  EXPECT_TRUE(counts.finished[2].score);
  EXPECT_EQ(counts.finished[2].usage.prompt_tokens, 15);
}

// Computed by hand, with chunks of 4 and a cap of 256: n(t) = floor(256 t / (t + 256)) at whole
// chunks. The first request consumes 30 + 9 tokens: 36 in chunks, n(36) = 31. The second 20, n(20)
// = 18, and each of its two answers 4 more, n(24) = 21. The score 15: 12 in chunks, n(12) = 11.
TEST(Events, DictionaryUpdatesFollowFromPositions) {
  int64_t inserts = 0;
  int64_t merges = 0;
  std::vector<std::optional<double>> fill;
  EngineEvents events;
  events.step = [&](const IterationReport& report) {
    inserts += report.dictionary_inserts;
    merges += report.dictionary_merges;
  };
  events.request_finished = [&](const RequestReport& r) { fill.push_back(r.dictionary_fill); };
  EngineOptions options;
  options.max_batch_tokens = 7;  // batches that do not end with a chunk
  TestEngine engine(options, {}, std::move(events));
  engine.Run(SampleRequest(SomeTokens(30, 1), 10));
  GenerateRequest two = SampleRequest(SomeTokens(20, 1), 5);
  two.n = 2;
  engine.Run(two);
  ScoreRequest score;
  score.prompt = SomeTokens(15, 1);
  EXPECT_TRUE(Score(engine, score).ok());
  engine.Destroy();
  EXPECT_EQ(inserts, 31 + (18 + 2 * 3) + 11);
  EXPECT_EQ(merges, (36 - 31) + (2 + 2 * 1) + (12 - 11));
  EXPECT_THAT(fill, testing::ElementsAre(31.0 / 256, 21.0 / 256, 11.0 / 256));
}

TEST(Events, SessionsTellTheirTokensAndTheTimeOfACall) {
  std::vector<SessionReport> reports;
  EngineEvents events;
  events.session_event = [&](const SessionReport& report) { reports.push_back(report); };
  TestEngine engine({}, {}, std::move(events));
  SessionOptions options;
  options.prompt = SomeTokens(50, 1);
  const absl::Time begin = absl::Now();
  const std::string id = engine.NewSession(options).id;
  EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
  const absl::Duration both = absl::Now() - begin;
  engine.Destroy();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].position, 50);
  EXPECT_EQ(reports[1].position, 50);
  for (const SessionReport& report : reports) EXPECT_GT(report.duration, absl::ZeroDuration());
  EXPECT_LE(reports[0].duration + reports[1].duration, both);
}

TEST(Stats, WhatAnIterationWorksOnShowsWhileItHangs) {
  TestEngine engine;
  engine.model().gate().CloseAt(1);
  const std::shared_ptr<TokenStream> stream = engine.Start(SampleRequest(SomeTokens(5, 1), 3));
  engine.model().gate().AwaitEntered(1);
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.requests_running, 1);
  EXPECT_EQ(stats.requests_waiting, 0);
  EXPECT_GT(stats.state_bytes_reserved, 0u);
  engine.model().gate().Open();
  EXPECT_EQ(ReadAll(*stream).of[0].tokens.size(), 3u);
}

TEST(Stats, SlotsAreSessionsOfTheDefaultCap) {
  EngineOptions options;
  const size_t each = FakeModel().layout().bytes_cap(kDefaultSlotCap);
  options.state_memory_bytes = 5 * each - 1;
  options.max_sessions = 100;
  TestEngine engine(options);
  EXPECT_EQ(engine.SettledStats().session_slots, 4);
  for (int i = 0; i < 4; ++i) engine.NewSession();
  Receiver<absl::StatusOr<SessionInfo>> fifth;
  engine->sessions().Create({}, fifth.callback());
  EXPECT_EQ(fifth.Wait().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine.SettledStats().sessions_idle, 4);
  options.max_sessions = 3;
  EXPECT_EQ(TestEngine(options)->Stats().session_slots, 3);
}

TEST(Threads, ManyCallersAtOnce) {
  EngineOptions options;
  options.max_batch_tokens = 48;
  options.state_memory_bytes = size_t{1} << 21;
  TestEngine engine(options);
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 8; ++i) {
    expected.push_back(engine.Run(SampleRequest(SomeTokens(10 + i, i), 20, 3)).of[0].tokens);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const std::string id = engine.NewSession().id;
      for (int round = 0; round < 6; ++round) {
        const std::shared_ptr<TokenStream> stream =
            engine.Start(SampleRequest(SomeTokens(10 + i, i), 20, 3), 3);
        if (round % 3 == 2) {
          stream->Cancel();
          ReadAll(*stream);
        } else {
          EXPECT_EQ(ReadAll(*stream).of[0].tokens, expected[i]);
        }
        GenerateRequest turn = SampleRequest({1, 2, 3}, 4);
        turn.session_id = id;
        EXPECT_TRUE(engine.Run(turn).status.ok());
        EXPECT_EQ(engine->sessions().Get(id, "")->position, 7 * (round + 1));
        engine->Stats();
      }
      EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

}  // namespace
}  // namespace ovq::engine::test
