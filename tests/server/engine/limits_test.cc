// Cancellation, deadlines, slow readers, full queues and full memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "server/engine/common/error_facts.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/stepping_clock.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

SteadyTime SteadyNow() { return std::chrono::steady_clock::now(); }

TEST(Cancel, AtEveryStepFreesTheMemoryWithinOneStep) {
  for (int64_t step = 1; step <= 12; ++step) {  // prompt: 5 iterations of 4 tokens; then decoding
    Receiver<absl::Duration> released;
    EngineEvents events;
    events.cancel_released = released.callback();
    EngineOptions options;
    options.max_batch_tokens = 4;
    TestEngine engine(options, {}, std::move(events));
    engine.model().gate().CloseAt(step);
    GenerateRequest request = SampleRequest(SomeTokens(20, 1), 1000);
    request.n = 3;
    const std::shared_ptr<TokenStream> stream = engine.Start(request);
    engine.model().gate().AwaitEntered(step);
    stream->Cancel();
    engine.model().gate().Open();
    const Answers answers = ReadAll(*stream, 3);
    EXPECT_EQ(answers.status.code(), absl::StatusCode::kCancelled);
    for (const Answer& answer : answers.of) {
      ASSERT_TRUE(answer.finished) << "step " << step;
      EXPECT_EQ(answer.finished->reason, FinishReason::kCancelled);
    }
    EXPECT_EQ(engine.model().gate().steps(), step);
    EXPECT_GE(released.Wait(), absl::ZeroDuration());
    const EngineStats stats = engine.SettledStats();
    EXPECT_EQ(stats.state_bytes_committed, 0u);
    EXPECT_EQ(stats.state_bytes_reserved, 0u);
    EXPECT_EQ(stats.requests_running, 0);
    EXPECT_EQ(stats.sessions_active, 0);
  }
}

TEST(Cancel, InTheQueueAndBeforeSubmit) {
  FakeModel probe;
  EngineOptions options;
  options.state_memory_bytes = probe.layout().bytes_cap(kDefaultSlotCap);
  TestEngine engine(options);
  const std::string id = engine.NewSession().id;  // uses all memory
  const std::shared_ptr<TokenStream> stream = engine.Start(SampleRequest({1, 2}, 3));
  EXPECT_EQ(engine.SettledStats().requests_waiting, 1);
  EXPECT_EQ(engine.SettledStats().waiting_prompt_tokens, 2);
  stream->Cancel();  // wakes the idle engine
  EXPECT_EQ(ReadAll(*stream).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.SettledStats().requests_waiting, 0);

  EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
  auto early = std::make_shared<TokenStream>();
  early->Cancel();
  EXPECT_TRUE(engine->Submit(SampleRequest({1, 2}, 3), early).ok());
  EXPECT_EQ(ReadAll(*early).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.model().gate().steps(), 0);
}

TEST(Deadline, InTheQueue) {
  FakeModel probe;
  EngineOptions options;
  options.state_memory_bytes = probe.layout().bytes_cap(kDefaultSlotCap);
  TestEngine engine(options);
  engine.NewSession();
  GenerateRequest request = SampleRequest({1, 2}, 3);
  request.deadline = SteadyNow() + std::chrono::milliseconds(30);
  const Answers answers = engine.Run(request);
  EXPECT_EQ(answers.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(answers.status.message()), HasSubstr("queue"));
  EXPECT_FALSE(answers.started);
  EXPECT_GE(SteadyNow(), request.deadline);
}

TEST(Deadline, DuringPrefillAndDecode) {
  for (int64_t step : {2, 9}) {
    Receiver<RequestReport> report;
    EngineEvents events;
    events.request_finished = [callback = report.callback()](const RequestReport& r) {
      callback(r);
    };
    EngineOptions options;
    options.max_batch_tokens = 4;
    const auto step_us = std::make_shared<std::atomic<int64_t>>(0);  // time stands still
    options.clock = SteppingClock(step_us);
    TestEngine engine(options, {}, std::move(events));
    engine.model().gate().CloseAt(step);
    GenerateRequest request = SampleRequest(SomeTokens(20, 1), 1000);
    request.deadline = options.clock.steady() + std::chrono::milliseconds(400);
    const std::shared_ptr<TokenStream> stream = engine.Start(request);
    engine.model().gate().AwaitEntered(step);
    *step_us = 400'000;
    engine.model().gate().Open();
    const Answers answers = ReadAll(*stream);
    EXPECT_EQ(answers.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(answers.status.message()),
                HasSubstr(step == 2 ? "while the prompt was prefilled" : "while generating"));
    EXPECT_EQ(engine.model().gate().steps(), step);
    EXPECT_EQ(report.Wait().reason, FinishReason::kDeadline);
    EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
  }
}

TEST(Deadline, OfAParkedRequestWakesTheEngine) {
  TestEngine engine;
  GenerateRequest request = SampleRequest({1}, 1000);
  request.deadline = SteadyNow() + std::chrono::milliseconds(60);
  const std::shared_ptr<TokenStream> stream = engine.Start(request, 2);
  while (engine.SettledStats().requests_running + engine.SettledStats().requests_waiting > 0) {
  }
  EXPECT_GE(SteadyNow(), request.deadline);
  EXPECT_EQ(ReadAll(*stream).status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(SlowReader, IsParkedWhileOthersGoOn) {
  Receiver<absl::Duration> blocked;
  EngineEvents events;
  events.stream_blocked = blocked.callback();
  TestEngine engine({}, {}, std::move(events));
  const GenerateRequest request = SampleRequest(SomeTokens(5, 1), 200);
  const std::vector<int32_t> expected = engine.Run(request).of[0].tokens;

  const std::shared_ptr<TokenStream> slow = engine.Start(request, 4);
  const Answers fast = engine.Run(SampleRequest(SomeTokens(6, 1), 200));
  EXPECT_EQ(fast.of[0].tokens.size(), 200u);
  EXPECT_EQ(engine.SettledStats().requests_running, 1);
  EXPECT_EQ(engine.SettledStats().requests_blocked, 1);
  EXPECT_TRUE(slow->full());
  EXPECT_FALSE(slow->closed());
  const int64_t steps = engine.model().gate().steps();
  engine.SettledStats();
  EXPECT_EQ(engine.model().gate().steps(), steps) << "nothing runs while the only stream is full";
  EXPECT_FALSE(blocked.has_value());
  EXPECT_EQ(ReadAll(*slow).of[0].tokens, expected);
  EXPECT_GT(blocked.Wait(), absl::ZeroDuration());
  EXPECT_EQ(engine.SettledStats().requests_blocked, 0);
}

TEST(SlowReader, CompletionsShareOneStream) {
  TestEngine engine;
  GenerateRequest request = SampleRequest(SomeTokens(5, 1), 50);
  request.n = 6;
  const Answers expected = engine.Run(request);
  const Answers slow = ReadAll(*engine.Start(request, 1), 6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(slow.of[i].tokens, expected.of[i].tokens);
}

TEST(Queue, FullIsRefusedAndCounted) {
  std::atomic<int> rejected = 0;
  EngineEvents events;
  events.rejected = [&](RejectReason reason) { rejected += reason == RejectReason::kQueueFull; };
  FakeModel probe;
  EngineOptions options;
  options.state_memory_bytes = probe.layout().bytes_cap(kDefaultSlotCap);
  options.max_queue = 2;
  TestEngine engine(options, {}, std::move(events));
  const std::string id = engine.NewSession().id;
  std::vector<std::shared_ptr<TokenStream>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(engine.Start(SampleRequest({1}, 3, 4 + i)));
  const absl::Status status =
      engine->Submit(SampleRequest({1}, 3), std::make_shared<TokenStream>());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("queue"));
  EXPECT_EQ(GetErrorFacts(status), (ErrorFacts{.reason = RejectReason::kQueueFull}));
  // A turn of an admitted session does not wait for them.
  GenerateRequest turn = SampleRequest({1}, 3);
  turn.session_id = id;
  EXPECT_TRUE(engine.Run(turn).status.ok());
  EXPECT_EQ(rejected, 1);
  EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
  for (const auto& stream : waiting) EXPECT_TRUE(ReadAll(*stream).status.ok());
}

TEST(Memory, RequestsWaitInOrderAndRunWhenItIsFreed) {
  FakeModel probe;
  const size_t needed = probe.layout().bytes_at(1000, kDefaultSlotCap);
  EngineOptions options;
  options.state_memory_bytes = 2 * needed;
  TestEngine engine(options);
  engine.model().gate().CloseAt(1);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 5; ++i)
    streams.push_back(engine.Start(SampleRequest(SomeTokens(900, i), 100)));
  engine.model().gate().AwaitEntered(1);
  engine.model().gate().Open();
  for (const auto& stream : streams) EXPECT_EQ(ReadAll(*stream).of[0].tokens.size(), 100u);
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

TEST(Memory, ReservationIsWhatTheRequestCanReach) {
  TestEngine engine;
  const model::StateLayout& layout = engine.model().layout();
  for (int64_t max_tokens : {int64_t{100}, INT64_MAX}) {
    const std::shared_ptr<TokenStream> parked =
        engine.Start(SampleRequest(SomeTokens(500, 1), max_tokens), 2);
    while (!parked->full()) engine.SettledStats();
    const EngineStats stats = engine.SettledStats();
    EXPECT_EQ(stats.state_bytes_reserved, max_tokens == 100 ? layout.bytes_at(600, kDefaultSlotCap)
                                                            : layout.bytes_cap(kDefaultSlotCap));
    EXPECT_EQ(stats.state_bytes_committed, layout.bytes_at(500, kDefaultSlotCap));
    parked->Cancel();
    ReadAll(*parked);
  }
}

TEST(Memory, WhatCanNeverFitIsRefusedAtOnce) {
  EngineOptions options;
  options.state_memory_bytes = 20000;
  options.max_sessions = 4;
  TestEngine engine(options);
  const absl::Status status =
      engine->Submit(SampleRequest(SomeTokens(3000, 1), 5), std::make_shared<TokenStream>());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("20000 in all"));
  const size_t needed = engine.model().layout().bytes_at(3005, kDefaultSlotCap);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(needed)));
  EXPECT_EQ(GetErrorFacts(status), (ErrorFacts{.reason = RejectReason::kStateMemory,
                                               .bytes_needed = needed,
                                               .bytes_free = 20000}));
  GenerateRequest many = SampleRequest({1}, 2);
  many.n = 5;
  EXPECT_EQ(engine->Submit(many, std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(FullAttention, HasALengthLimit) {
  TestEngine engine({}, {.full_attention = true, .max_unbounded_tokens = 50});
  EXPECT_EQ(
      engine->Submit(SampleRequest(SomeTokens(51, 1), 1), std::make_shared<TokenStream>()).code(),
      absl::StatusCode::kOutOfRange);
  const Answers answers = engine.Run(SampleRequest(SomeTokens(40, 1), 1000));
  EXPECT_EQ(answers.status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(answers.of[0].tokens.size(), 11u) << "the last needs no room of its own";
  EXPECT_FALSE(answers.of[0].finished);

  SessionOptions options;
  options.prompt = SomeTokens(50, 1);
  const std::string id = engine.NewSession(options).id;
  GenerateRequest turn = SampleRequest({}, 1);
  turn.session_id = id;
  EXPECT_TRUE(engine.Run(turn).status.ok());
  turn.prompt = {1};
  EXPECT_EQ(engine->Submit(turn, std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(engine->sessions().Get(id, "")->position, 51);
}

}  // namespace
}  // namespace ovq::engine::test
