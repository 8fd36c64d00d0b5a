// The whole engine without its thread: callers' requests, and iterations of the loop by hand.
#include "server/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/engine/parts.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

class EngineByHand {
 public:
  explicit EngineByHand(EngineOptions options = {}, EngineEvents events = {})
      : engine_(Config(std::move(options), std::move(events)),
                kernels::test::MakeContext(kernels::Device::kCpu)) {}
  ~EngineByHand() { engine_.EndAll(absl::CancelledError("")); }

  Engine* operator->() { return &engine_; }
  std::shared_ptr<TokenStream> Submit(GenerateRequest request, size_t capacity = 256) {
    auto stream = std::make_shared<TokenStream>(capacity);
    EXPECT_TRUE(engine_.Submit(std::move(request), stream).ok());
    return stream;
  }
  std::string NewSession(SessionOptions options = {}) {
    std::string id;
    engine_.sessions().Create(std::move(options),
                              [&](absl::StatusOr<SessionInfo> info) { id = info->id; });
    while (engine_.RunIteration()) {
    }
    return id;
  }

  TestClock clock;

 private:
  EngineConfig Config(EngineOptions options, EngineEvents events) {
    options.clock = clock.clock();
    return {model_.Make(), std::move(options), std::move(events)};
  }

  FakeModel model_;
  Engine engine_;
};

TEST(Engine, OneIterationRunsOneBatch) {
  EngineByHand engine;
  const auto stream = engine.Submit(SampleRequest(SomeTokens(5, 1), 3));
  EXPECT_FALSE(stream->TryPop()) << "nothing happens on the caller's thread";
  EXPECT_TRUE(engine->RunIteration());
  EXPECT_TRUE(stream->TryPop()->started);
  EXPECT_TRUE(stream->TryPop()->chunk);
  EXPECT_FALSE(stream->TryPop());
  EXPECT_TRUE(engine->RunIteration());
  EXPECT_TRUE(engine->RunIteration());
  EXPECT_FALSE(engine->RunIteration());
  EXPECT_EQ(ReadAll(*stream).of[0].finished->usage.generated_tokens, 3);
  EXPECT_EQ(engine->TimeToNextEnd(), absl::InfiniteDuration());
}

TEST(Engine, AJumpOfTheWallClockEndsNothing) {
  EngineByHand engine;
  const std::string id = engine.NewSession(Lasting(absl::Seconds(100)));
  GenerateRequest request = SampleRequest({1}, 1000);
  request.deadline = engine.clock.steady + std::chrono::seconds(30);
  const auto stream = engine.Submit(request, 2);
  while (engine->RunIteration()) {
  }
  EXPECT_EQ(engine->TimeToNextEnd(), absl::Seconds(30));
  for (absl::Duration jump : {absl::Hours(5000), -absl::Hours(10000)}) {
    engine.clock.wall += jump;
    engine->RunIteration();
    EXPECT_FALSE(stream->closed());
    EXPECT_TRUE(engine->sessions().Get(id, "").ok());
    EXPECT_EQ(engine->TimeToNextEnd(), absl::Seconds(30));
  }
  engine.clock.Advance(absl::Seconds(30));
  engine->RunIteration();
  EXPECT_EQ(ReadAll(*stream).status.message(), "deadline passed while generating");
  EXPECT_EQ(engine->TimeToNextEnd(), absl::Seconds(70));
  engine.clock.Advance(absl::Seconds(70));
  engine->RunIteration();
  EXPECT_TRUE(absl::IsNotFound(engine->sessions().Get(id, "").status()));
}

TEST(Engine, SessionsAreSeenAsOfTheLastIteration) {
  EngineOptions options;
  options.max_batch_tokens = 4;
  EngineByHand engine(options);
  const std::string id = engine.NewSession();
  GenerateRequest turn = SampleRequest(SomeTokens(10, 1), 2);
  turn.session_id = id;
  const auto stream = engine.Submit(turn);
  EXPECT_TRUE(engine->sessions().Get(id, "")->busy);
  const std::vector<int64_t> positions = {4, 8, 11, 12};
  for (int64_t position : positions) {
    engine->RunIteration();
    const SessionPage page = *engine->sessions().List("", 10, "");
    ASSERT_EQ(page.sessions.size(), 1u);
    EXPECT_EQ(page.sessions[0].position, position);
    EXPECT_EQ(page.sessions[0].busy, position < 12);
  }
  EXPECT_TRUE(stream->status().ok());
}

TEST(Engine, TimesAreThoseOfItsClock) {
  std::vector<absl::Duration> first, between;
  std::optional<RequestReport> finished;
  EngineEvents events;
  events.first_token = [&](absl::Duration time) { first.push_back(time); };
  events.next_token = [&](absl::Duration time) { between.push_back(time); };
  events.request_finished = [&](const RequestReport& report) { finished = report; };
  EngineOptions options;
  options.max_batch_tokens = 3;
  EngineByHand engine(options, events);
  GenerateRequest request = SampleRequest(SomeTokens(6, 1), 2);
  request.arrival = engine.clock.steady - std::chrono::seconds(1);
  const auto stream = engine.Submit(request);
  engine.clock.Advance(absl::Seconds(2));
  engine->RunIteration();
  engine.clock.Advance(absl::Seconds(4));
  engine->RunIteration();
  engine.clock.Advance(absl::Seconds(8));
  engine->RunIteration();
  EXPECT_THAT(first, testing::ElementsAre(absl::Seconds(7)));
  EXPECT_THAT(between, testing::ElementsAre(absl::Seconds(8)));
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->total, absl::Seconds(15));
  EXPECT_EQ(finished->usage.queue_time, absl::Seconds(3));
  EXPECT_EQ(finished->usage.prefill_time, absl::Seconds(4));
  EXPECT_EQ(finished->usage.decode_time, absl::Seconds(8));
}

TEST(Engine, AClaimedTurnWhoseSessionGoesIsCancelled) {
  EngineByHand engine;
  const std::string id = engine.NewSession();
  GenerateRequest turn = SampleRequest({1}, 2);
  turn.session_id = id;
  const auto stream = engine.Submit(turn);
  engine->sessions().parts().removal.Delete(
      id, "", engine.clock.steady, [](const absl::Status& status) { EXPECT_TRUE(status.ok()); });
  engine->RunIteration();
  EXPECT_THAT(std::string(ReadAll(*stream).status.message()), HasSubstr("session was deleted"));
  EXPECT_EQ(engine->Stats().state_bytes_reserved, 0u);
}

// Stop comes between Run's check of stopping_ and RunIteration, which consumes Stop's ring.
TEST(EngineLoop, AStopWithinATurnIsNotSleptThrough) {
  FakeModel model;
  Engine* running = nullptr;
  EngineOptions options;
  options.clock.steady = [&running] {
    if (running != nullptr) std::exchange(running, nullptr)->Stop();
    return std::chrono::steady_clock::now();
  };
  Engine engine({model.Make(), std::move(options), {}},
                kernels::test::MakeContext(kernels::Device::kCpu));
  running = &engine;
  engine.Run();  // never returns if Stop is missed
  EXPECT_EQ(running, nullptr);
}

}  // namespace
}  // namespace ovq::engine::test
