// Copies of sessions and of prompts' states: they are equal to the byte, made all or not at all,
// and no other request waits for all of them.
#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/engine/common/quota.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

absl::StatusOr<std::vector<SessionInfo>> Fork(TestEngine& engine, ForkOptions options) {
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> receiver;
  engine->sessions().Fork(std::move(options), receiver.callback());
  return receiver.Wait();
}

TEST(Fork, CopiesGoOnFromTheSameBytesIndependently) {
  TestEngine engine({}, {.exact_too = true});
  SessionOptions options;
  options.prompt = SomeTokens(140, 3);
  options.key = "blue";
  options.variant = "exact";
  options.slot_cap = 40;
  options.ttl = absl::Minutes(7);
  const SessionInfo made = engine.NewSession(options);
  engine.Run(Turn(made.id, SomeTokens(30, 4), 9));
  const SessionInfo parent = *engine->sessions().Get(made.id, "");
  const std::vector<std::byte> before = State(engine, parent.id);
  const absl::StatusOr<std::vector<SessionInfo>> copies =
      Fork(engine, {.session_id = parent.id, .count = 3});
  ASSERT_TRUE(copies.ok()) << copies.status();
  ASSERT_EQ(copies->size(), 3u);
  std::set<std::string> ids = {parent.id};
  for (const SessionInfo& copy : *copies) {
    EXPECT_TRUE(ids.insert(copy.id).second);
    EXPECT_EQ(copy.id.substr(0, 5), "blue.");
    EXPECT_EQ(copy.position, parent.position);
    EXPECT_EQ(copy.last_token, parent.last_token);
    EXPECT_EQ(copy.cache_policy, "exact");
    EXPECT_EQ(copy.slot_cap, 40);
    EXPECT_EQ(copy.live_slots, parent.live_slots);
    EXPECT_EQ(copy.state_bytes, parent.state_bytes);
    EXPECT_EQ(copy.state_bytes_cap, parent.state_bytes_cap);
    EXPECT_EQ(copy.expires, copy.last_used + absl::Minutes(7));
    EXPECT_EQ(copy.prompt_tokens_total + copy.generated_tokens_total, 0);
    EXPECT_EQ(State(engine, copy.id), before);
  }
  // A turn of one copy does not change the others; the same turn brings all to the same bytes.
  const std::vector<int32_t> first =
      engine.Run(Turn((*copies)[0].id, SomeTokens(70, 5), 20)).of[0].tokens;
  EXPECT_EQ(State(engine, parent.id), before);
  EXPECT_EQ(State(engine, (*copies)[1].id), before);
  EXPECT_TRUE(engine->sessions().Delete((*copies)[2].id, "").ok());
  EXPECT_EQ(engine.Run(Turn((*copies)[1].id, SomeTokens(70, 5), 20)).of[0].tokens, first);
  EXPECT_EQ(engine.Run(Turn(parent.id, SomeTokens(70, 5), 20)).of[0].tokens, first);
  EXPECT_EQ(State(engine, (*copies)[0].id), State(engine, parent.id));
  EXPECT_EQ(State(engine, (*copies)[1].id), State(engine, parent.id));
  // A copy outlives its original.
  EXPECT_TRUE(engine->sessions().Delete(parent.id, "").ok());
  const absl::StatusOr<std::vector<SessionInfo>> again =
      Fork(engine, {.session_id = (*copies)[0].id, .ttl = absl::Minutes(1)});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->front().expires, again->front().last_used + absl::Minutes(1));
  EXPECT_EQ(engine.Run(Turn(again->front().id, {}, 6)).of[0].tokens,
            engine.Run(Turn((*copies)[1].id, {}, 6)).of[0].tokens);
}

TEST(Fork, OthersMayAskMeanwhile) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  for (int turn = 0; turn < 4; ++turn) engine.Run(Turn(id, SomeTokens(70, 4), 3));
  std::atomic<bool> ended = false;
  std::thread asking([&] {
    while (!ended) EXPECT_TRUE(engine->sessions().Get(id, "").ok());
  });
  for (int i = 0; i < 50; ++i) {
    const auto copies = Fork(engine, {.session_id = id, .count = 4});
    EXPECT_TRUE(copies.ok()) << copies.status();
    if (!copies.ok()) break;
    for (const SessionInfo& copy : *copies) {
      EXPECT_TRUE(engine->sessions().Delete(copy.id, "").ok());
    }
  }
  ended = true;
  asking.join();
}

TEST(Fork, AnEmptySessionHasEmptyCopies) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  const auto copies = Fork(engine, {.session_id = id});
  ASSERT_TRUE(copies.ok()) << copies.status();
  EXPECT_EQ(copies->front().position, 0);
  EXPECT_EQ(engine.Run(Turn(copies->front().id, {1, 2, 3}, 5)).of[0].tokens,
            engine.Run(SampleRequest({1, 2, 3}, 5)).of[0].tokens);
}

TEST(Fork, IsWholeOrNotAtAll) {
  EngineOptions options;
  options.max_sessions = 4;
  options.quotas = std::make_shared<TenantQuotas>();
  const size_t cap = FakeModel().layout().bytes_cap(kDefaultSlotCap);
  options.state_memory_bytes = 3 * cap;
  options.quotas->SetLimits({{"small", {.sessions = 2}}});
  TestEngine engine(options);
  const std::string id = engine.NewSession().id;
  const auto code = [&](ForkOptions fork) { return Fork(engine, std::move(fork)).status().code(); };
  const auto reserved = [&] { return engine.SettledStats().state_bytes_reserved; };
  // Refused before the first copy is made.
  const absl::Status none = Fork(engine, {.session_id = id, .count = 3}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(none)) << none;
  EXPECT_EQ(none.message(), absl::StrCat("state memory: ", 3 * cap, " bytes needed, ", 2 * cap,
                                         " of ", 3 * cap, " bytes free"));
  EXPECT_EQ(Fork(engine, {.session_id = id, .count = 5}).status().message(),
            "sessions: 5 needed, 3 of the server's 4 free");
  EXPECT_EQ(reserved(), cap);
  EXPECT_EQ(code({.session_id = id, .count = 2}), absl::StatusCode::kOk);
  EXPECT_EQ(reserved(), 3 * cap);
  EXPECT_EQ(options.quotas->Use().front().state_bytes, 3 * cap);
  EXPECT_EQ(options.quotas->Use().front().sessions, 3);
  const SessionPage all = *engine->sessions().List("", 10, "");
  for (const SessionInfo& session : all.sessions) {
    EXPECT_TRUE(engine->sessions().Delete(session.id, "").ok());
  }
  EXPECT_EQ(reserved(), 0u);
  SessionOptions of_small;
  of_small.tenant = "small";
  const std::string small = engine.NewSession(of_small).id;
  EXPECT_EQ(code({.session_id = small, .tenant = "small", .count = 2}),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(options.quotas->Use().front().sessions, 1);
  EXPECT_EQ(code({.session_id = small, .tenant = "small"}), absl::StatusCode::kOk);
  EXPECT_EQ(options.quotas->Use().front().sessions, 2);
  EXPECT_EQ(code({.session_id = small, .tenant = "other"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({.session_id = small, .tenant = "small", .count = 0}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.session_id = small, .tenant = "small", .count = 65}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.session_id = small, .tenant = "small", .ttl = absl::ZeroDuration()}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine->Drain(absl::InfiniteDuration()));
  EXPECT_EQ(code({.session_id = small, .tenant = "small"}), absl::StatusCode::kUnavailable);
}

TEST(Fork, NotWhileACallUsesTheSession) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  const std::shared_ptr<TokenStream> parked = engine.Start(Turn(id, {1, 2}, 300), 4);
  while (!parked->full()) engine.AwaitBoundary();
  EXPECT_EQ(Fork(engine, {.session_id = id}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  parked->Cancel();
  ReadAll(*parked);
  EXPECT_TRUE(Fork(engine, {.session_id = id}).ok());
}

// An answer that is drawn beside a fork of 20 copies, one per iteration.
class ForkBesideOthers : public testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options;
    options.copy_bytes_per_iteration = 1;
    return options;
  }
  // Begins the fork inside an iteration, and records how many had begun when it ended.
  void Begin() {
    SessionOptions options;
    options.prompt = SomeTokens(140, 3);
    id_ = engine_.NewSession(options).id;
    state_ = State(engine_, id_);
    other_ = engine_.Start(SampleRequest({1, 2, 3}, 1'000'000), 1'000'000);
    IterationGate& gate = engine_.model().gate();
    begun_ = gate.steps() + 1;
    gate.CloseAt(begun_);
    gate.AwaitEntered(begun_);
    engine_->sessions().Fork({.session_id = id_, .count = 20}, [this](auto copies) {
      ended_ = engine_.model().gate().steps();
      copies_.callback()(std::move(copies));
    });
  }
  void CheckCopies() {
    const absl::StatusOr<std::vector<SessionInfo>> copies = copies_.Wait();
    ASSERT_TRUE(copies.ok()) << copies.status();
    EXPECT_EQ(copies->size(), 20u);
    for (const SessionInfo& copy : *copies) EXPECT_EQ(State(engine_, copy.id), state_);
  }

  TestEngine engine_{Options()};
  std::string id_;
  std::vector<std::byte> state_;
  std::shared_ptr<TokenStream> other_;
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> copies_;
  int64_t begun_ = 0, ended_ = 0;
};

TEST_F(ForkBesideOthers, TheyTakeStepsBetweenItsCopies) {
  Begin();
  engine_.model().gate().Open();
  CheckCopies();
  EXPECT_GE(ended_ - begun_, 19);
  other_->Cancel();
}

TEST_F(ForkBesideOthers, TheSessionIsInUseUntilThen) {
  Begin();
  // The first copies are made before the next iteration, in which the engine then waits.
  engine_.model().gate().CloseAt(begun_ + 1);
  engine_.model().gate().AwaitEntered(begun_ + 1);
  auto stream = std::make_shared<TokenStream>(16);
  EXPECT_EQ(engine_->Submit(Turn(id_, {1}, 5), stream).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(engine_->sessions().Get(id_, "")->busy);
  engine_.model().gate().Open();
  CheckCopies();
  EXPECT_TRUE(engine_.Run(Turn(id_, {1}, 5)).status.ok());
  other_->Cancel();
}

TEST_F(ForkBesideOthers, ItsCopiesOutliveTheSession) {
  Begin();
  engine_.model().gate().CloseAt(begun_ + 1);
  engine_.model().gate().AwaitEntered(begun_ + 1);
  Receiver<absl::Status> deleted;
  std::thread deletes([&] { deleted.callback()(engine_->sessions().Delete(id_, std::nullopt)); });
  engine_.model().gate().Open();
  EXPECT_TRUE(deleted.Wait().ok());
  deletes.join();
  CheckCopies();
  other_->Cancel();
  ReadAll(*other_);
  const absl::StatusOr<std::vector<SessionInfo>> copies = copies_.Wait();
  for (const SessionInfo& copy : *copies) {
    EXPECT_TRUE(engine_->sessions().Delete(copy.id, std::nullopt).ok());
  }
  EXPECT_EQ(engine_.SettledStats().state_bytes_reserved, 0u);
}

// An answer that is drawn beside a prompt with 20 answers, whose states are copied one per
// iteration.
class AnswersBesideOthers : public testing::Test {
 protected:
  static EngineOptions Options(size_t copy_bytes_per_iteration) {
    EngineOptions options;
    options.copy_bytes_per_iteration = copy_bytes_per_iteration;
    return options;
  }
  static GenerateRequest Twenty() {
    GenerateRequest request = SampleRequest(SomeTokens(140, 3), 12);
    request.n = 20;
    request.sampling = {{.temperature = 1, .seed = 7}};
    return request;
  }
  // Begins the prompt inside an iteration.
  void Begin() {
    other_ = engine_.Start(SampleRequest({1, 2, 3}, 1'000'000), 1'000'000);
    gate_.CloseAt(gate_.steps() + 1);
    gate_.AwaitEntered(gate_.steps());
    answers_ = engine_.Start(Twenty());
    begun_ = gate_.steps();
  }

  TestEngine engine_{Options(1)};
  IterationGate& gate_ = engine_.model().gate();
  std::shared_ptr<TokenStream> other_, answers_;
  int64_t begun_ = 0;
};

TEST_F(AnswersBesideOthers, TheyTakeStepsBetweenItsCopies) {
  Begin();
  gate_.CloseAt(begun_ + 10);  // the next iteration prefills the prompt
  gate_.AwaitEntered(begun_ + 10);
  EXPECT_TRUE(Pop(*answers_)->started);
  EXPECT_LT(engine_->Stats().sessions_active, 2 + 19);
  gate_.Open();
  const Answers answers = ReadAll(*answers_, 20);
  EXPECT_TRUE(answers.status.ok()) << answers.status;
  TestEngine at_once(Options(size_t{1} << 30));
  const Answers expected = at_once.Run(Twenty());
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(answers.of[i].tokens, expected.of[i].tokens);
  other_->Cancel();
}

TEST_F(AnswersBesideOthers, CancelledBetweenItsCopiesItGivesAllBack) {
  Begin();
  gate_.CloseAt(begun_ + 10);
  gate_.AwaitEntered(begun_ + 10);
  answers_->Cancel();
  other_->Cancel();
  gate_.Open();
  const Answers answers = ReadAll(*answers_, 20);
  EXPECT_EQ(answers.status.code(), absl::StatusCode::kCancelled);
  for (const Answer& answer : answers.of) {
    EXPECT_TRUE(answer.tokens.empty());
    ASSERT_TRUE(answer.finished);
    EXPECT_EQ(answer.finished->usage.position, 140);
  }
  ReadAll(*other_);
  EXPECT_EQ(engine_.SettledStats().state_bytes_reserved, 0u);
}

TEST(CopiesOfAPrompt, NeedNobodyElsesSteps) {
  EngineOptions options;
  options.copy_bytes_per_iteration = 1;
  TestEngine engine(options);
  GenerateRequest request = SampleRequest(SomeTokens(30, 3), 1);
  request.n = 8;
  const Answers answers = engine.Run(request);
  EXPECT_TRUE(answers.status.ok()) << answers.status;
  for (const Answer& answer : answers.of) EXPECT_EQ(answer.tokens.size(), 1u);
}

}  // namespace
}  // namespace ovq::engine::test
