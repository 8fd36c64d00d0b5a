// Several clients of one engine: each one's share when it is full, and which one is evicted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/common/error_facts.h"
#include "server/engine/scheduling/batch_planner.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/stepping_clock.h"

namespace ovq::engine::test {
namespace {

constexpr int64_t kForEver = 1'000'000'000;

GenerateRequest Of(const std::string& client, int64_t max_tokens) {
  GenerateRequest request = SampleRequest(SomeTokens(3, 1), max_tokens);
  request.client = client;
  return request;
}

SessionOptions SessionOf(const std::string& client) {
  SessionOptions options;
  options.client = client;
  return options;
}

absl::Status Opened(TestEngine& engine, const SessionOptions& options) {
  Receiver<absl::StatusOr<SessionInfo>> receiver;
  engine->sessions().Create(options, receiver.callback());
  return receiver.Wait().status();
}

EngineOptions WithSessions(int max_sessions) {
  EngineOptions options;
  options.max_sessions = max_sessions;
  return options;
}

TEST(Clients, IdleSessionsOfWhoHasMoreThanItsPartMakeWay) {
  std::mutex mutex;
  std::vector<std::string> told;
  EngineEvents events;
  events.session_event = [&](const SessionReport& report) {
    std::lock_guard lock(mutex);
    told.emplace_back(report.event);
  };
  TestEngine engine(WithSessions(4), {}, std::move(events));
  std::vector<SessionInfo> many;
  for (int i = 0; i < 4; ++i) many.push_back(engine.NewSession(SessionOf("many")));
  EXPECT_EQ(Opened(engine, SessionOf("many")).code(), absl::StatusCode::kResourceExhausted);
  // A turn uses the first session again.
  GenerateRequest turn = Turn(many[0].id, SomeTokens(3, 1), 2);
  turn.client = "many";
  EXPECT_TRUE(engine.Run(turn).status.ok());
  EXPECT_TRUE(Opened(engine, SessionOf("new")).ok());
  EXPECT_TRUE(engine.Run(Of("new", 5)).status.ok());
  EXPECT_TRUE(engine->sessions().Get(many[0].id, "").ok());
  EXPECT_TRUE(absl::IsNotFound(engine->sessions().Get(many[1].id, "").status())) << "least recent";
  EXPECT_TRUE(absl::IsNotFound(engine->sessions().Get(many[2].id, "").status()));
  EXPECT_TRUE(engine->sessions().Get(many[3].id, "").ok());
  std::lock_guard lock(mutex);
  EXPECT_EQ(std::ranges::count(told, "give_way"), 2);
}

TEST(Clients, WhoHadNothingGetsAPlaceFromWhoHasAll) {
  TestEngine engine(WithSessions(8));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(engine.Start(Of("many", kForEver), 1 << 20));
  engine.AwaitBoundary();
  EXPECT_EQ(engine.SettledStats().requests_running, 8);
  EXPECT_TRUE(engine.Run(Of("new", 20)).status.ok());
  int ended = 0;
  for (const std::shared_ptr<TokenStream>& stream : streams) {
    while (stream->TryPop()) {
    }
    if (!stream->closed()) continue;
    ++ended;
    EXPECT_EQ(GetErrorFacts(stream->status()).reason, RejectReason::kGaveWay);
    EXPECT_EQ(stream->status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(ended, 1) << "and no more than it takes";
  for (const std::shared_ptr<TokenStream>& stream : streams) stream->Cancel();
}

TEST(Clients, SessionsInUseMakeWayToo) {
  TestEngine engine(WithSessions(2));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 2; ++i) {
    GenerateRequest turn =
        Turn(engine.NewSession(SessionOf("many")).id, SomeTokens(3, 1), kForEver);
    turn.client = "many";
    streams.push_back(engine.Start(turn, 1 << 20));
  }
  EXPECT_TRUE(engine.Run(Of("new", 20)).status.ok());
  EXPECT_EQ(engine.SettledStats().requests_running, 1);
  for (const std::shared_ptr<TokenStream>& stream : streams) stream->Cancel();
}

TEST(Clients, ATurnMayComeWhileItsSessionMakesWay) {
  TestEngine engine(WithSessions(4));
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> many;
    for (int i = 0; i < 4; ++i) many.push_back(engine.NewSession(SessionOf("many")).id);
    std::thread turns([&] {
      for (const std::string& id : many) {
        GenerateRequest turn = Turn(id, {1, 2}, 2);
        turn.client = "many";
        const auto stream = std::make_shared<TokenStream>(16);
        absl::Status status = engine->Submit(turn, stream);
        if (status.ok()) status = ReadAll(*stream).status;
        EXPECT_TRUE(status.ok() || absl::IsNotFound(status) || absl::IsResourceExhausted(status))
            << status;
      }
    });
    std::vector<std::string> others;
    for (int i = 0; i < 2; ++i) others.push_back(engine.NewSession(SessionOf("new")).id);
    turns.join();
    for (const std::string& id : others) EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
    for (const std::string& id : many) (void)engine->sessions().Delete(id, "");  // some are gone
    EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
  }
}

TEST(Clients, WhatIsPushedOutOfTheQueueIsTold) {
  EngineOptions options = WithSessions(1);
  options.max_queue = 2;
  TestEngine engine(options);
  engine.model().gate().CloseAt(1);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(engine.Start(Of("many", 3)));
    if (i == 0) engine.model().gate().AwaitEntered(1);
  }
  const std::shared_ptr<TokenStream> other = engine.Start(Of("new", 3));
  engine.model().gate().Open();
  const Answers answers = ReadAll(*streams[2]);
  EXPECT_EQ(GetErrorFacts(answers.status).reason, RejectReason::kQueueFull);
  EXPECT_TRUE(ReadAll(*other).status.ok());
  EXPECT_TRUE(ReadAll(*streams[1]).status.ok());
  EXPECT_EQ(engine.SettledStats().requests_waiting, 0);
}

// Batches of fewer tokens than both clients want are cut into parts of equal cost. The second
// client's tokens cost twice as much, as their log-probabilities cost as much as a token.
TEST(Clients, LogProbabilitiesAreWorkToo) {
  constexpr int kTop = 256, kSteps = 400;
  EngineOptions options;
  options.max_batch_tokens = 8;
  options.row_costs[static_cast<size_t>(RowKind::kLogprob)] = 1.0 / kTop;
  options.clock.steady = [] { return SteadyTime(std::chrono::hours(1)); };  // nothing is learned
  TestEngine engine(options, {.weight_bytes = size_t{1} << 40});
  engine.model().gate().CloseAt(1);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const int top : {0, kTop}) {
    GenerateRequest request = Of(top == 0 ? "plain" : "top", kForEver);
    request.n = 16;
    request.output.logprobs = top > 0;
    request.output.top_logprobs = top;
    streams.push_back(engine.Start(request, 1 << 20));
  }
  engine.model().gate().CloseAt(kSteps);
  engine.model().gate().AwaitEntered(kSteps);
  std::vector<double> tokens;
  for (const std::shared_ptr<TokenStream>& stream : streams) {
    double& n = tokens.emplace_back(0);
    while (const std::optional<StreamEvent> event = stream->TryPop()) n += event->chunk.has_value();
    stream->Cancel();
  }
  engine.model().gate().Open();
  EXPECT_NEAR(tokens[0] / tokens[1], 2, 0.2) << tokens[0] << " " << tokens[1];
}

// The time that the host's threads take for a client is given to others by the engine.
TEST(Clients, WhoKeepsTheHostBusyWaitsForTheEngine) {
  constexpr int kSteps = 150;
  EngineOptions options;
  options.max_batch_tokens = 8;
  options.clock = SteppingClock(20);  // long iterations would pay the debt
  TestEngine engine(options, {.weight_bytes = size_t{1} << 40});
  engine.model().gate().CloseAt(1);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* client : {"quick", "slow"}) {
    GenerateRequest request = Of(client, kForEver);
    request.n = 16;
    streams.push_back(engine.Start(request, 1 << 20));
  }
  engine.model().gate().AwaitEntered(1);
  HostTime& host_time = *engine->options().host_time;
  host_time.Settle(absl::ZeroDuration());  // the engine runs
  host_time.Charge("slow", absl::Seconds(10));
  host_time.Settle(std::nullopt);
  EXPECT_FALSE(host_time.MayBegin("slow"));
  engine.model().gate().CloseAt(kSteps);
  engine.model().gate().AwaitEntered(kSteps);
  std::vector<double> tokens;
  for (const std::shared_ptr<TokenStream>& stream : streams) {
    double& n = tokens.emplace_back(0);
    while (const std::optional<StreamEvent> event = stream->TryPop()) n += event->chunk.has_value();
    stream->Cancel();
  }
  engine.model().gate().Open();
  EXPECT_GT(tokens[0], 2 * tokens[1]);
  for (const std::shared_ptr<TokenStream>& stream : streams) ReadAll(*stream, 16);
  engine.AwaitBoundary();
  EXPECT_TRUE(host_time.MayBegin("slow")) << "nobody waits any more";
}

TEST(Clients, RowsAreMeasuredBeforeTheFirstCall) {
  EngineOptions options;
  options.clock = SteppingClock(20);  // long iterations would leave no time for others
  options.calibration = absl::Seconds(1);
  TestEngine engine(options, {.weight_bytes = size_t{1} << 40});
  EXPECT_GT(engine.model().gate().steps(), 10);
  const EngineStats stats = engine.SettledStats();
  for (size_t i = 0; i < kRowKinds.size(); ++i) EXPECT_GT(stats.row_seconds[i], 0) << kRowKinds[i];
  EXPECT_EQ(stats.state_bytes_reserved, 0u) << "the states are given back";
  EXPECT_EQ(engine.Run(Of("first", 5)).of.front().tokens,
            TestEngine().Run(Of("first", 5)).of.front().tokens);
}

TEST(Clients, RowsAreNotMeasuredWithoutMemory) {
  EngineOptions options;
  options.calibration = absl::Seconds(1);
  options.state_memory_bytes = 1;
  TestEngine engine(options, {.weight_bytes = size_t{1} << 40});
  EXPECT_EQ(engine.model().gate().steps(), 0);
}

// Time stands still, so batches reuse the previous choice of sequences (BatchPlanner::Standing).
TEST(Clients, WhoComesOrGoesIsInTheNextSteps) {
  EngineOptions options;
  options.max_batch_tokens = 8;
  options.max_sessions = 64;
  options.clock.steady = [] { return SteadyTime(std::chrono::hours(1)); };
  TestEngine engine(options);
  IterationGate& gate = engine.model().gate();
  gate.CloseAt(1);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 40; ++i) streams.push_back(engine.Start(Of("many", kForEver), 1 << 20));
  gate.CloseAt(300);
  gate.AwaitEntered(300);
  const std::shared_ptr<TokenStream> comes = engine.Start(Of("new", 3));
  gate.CloseAt(305);
  gate.AwaitEntered(305);
  int events = 0;
  while (comes->TryPop()) ++events;
  EXPECT_GE(events, 2) << "Started and a token";

  for (const std::shared_ptr<TokenStream>& stream : streams) stream->Cancel();
  gate.Open();
  EXPECT_TRUE(ReadAll(*comes).status.ok());
  for (const std::shared_ptr<TokenStream>& stream : streams) ReadAll(*stream);
  EXPECT_EQ(engine.SettledStats().requests_running, 0);
}

TEST(Clients, ACancelledSessionStopsReadingItsPrompt) {
  EngineOptions options;
  options.max_batch_tokens = 4;
  TestEngine engine(options);
  engine.model().gate().CloseAt(3);
  SessionOptions session = SessionOf("a");
  session.prompt = SomeTokens(1000, 1);
  session.cancel = std::make_shared<CancelSignal>();
  Receiver<absl::StatusOr<SessionInfo>> receiver;
  engine->sessions().Create(session, receiver.callback());
  engine.model().gate().AwaitEntered(3);
  session.cancel->Cancel();
  engine.model().gate().Open();
  EXPECT_TRUE(absl::IsCancelled(receiver.Wait().status()));
  EXPECT_EQ(engine.model().gate().steps(), 3);
  EXPECT_EQ(engine.SettledStats().sessions_active + engine.SettledStats().sessions_idle, 0);
}

}  // namespace
}  // namespace ovq::engine::test
