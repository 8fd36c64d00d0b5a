// Rewinds: exact to the byte with any checkpoints, and complete or without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/time/clock.h"
#include "base/huge_pages.h"
#include "server/engine/common/checkpoints.h"
#include "server/engine/common/limits.h"
#include "tests/server/engine/parts.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

absl::StatusOr<RewindResult> Rewind(TestEngine& engine, RewindOptions options) {
  Receiver<absl::StatusOr<RewindResult>> receiver;
  engine->sessions().Rewind(std::move(options), nullptr, receiver.callback());
  return receiver.Wait();
}

// State of a fresh session that has consumed just these tokens.
std::vector<std::byte> StateAfter(TestEngine& engine, const std::vector<int32_t>& tokens) {
  SessionOptions options;
  options.prompt = tokens;
  const std::string id = engine.NewSession(options).id;
  std::vector<std::byte> state = State(engine, id);
  EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
  return state;
}

// A session with turns of random lengths, and a list of its tokens.
struct Conversation {
  std::string id;
  std::vector<int32_t> tokens;

  void Say(TestEngine& engine, int64_t n_prompt, int64_t n_answer, uint32_t seed) {
    const std::vector<int32_t> prompt = SomeTokens(n_prompt, seed);
    const Answers turn = engine.Run(Turn(id, prompt, n_answer, seed));
    ASSERT_TRUE(turn.status.ok()) << turn.status;
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), turn.of[0].tokens.begin(), turn.of[0].tokens.end());
  }
};

class RewindWithMemory : public testing::TestWithParam<size_t> {};

TEST_P(RewindWithMemory, IsAsIfItHadNeverGoneFurther) {
  EngineOptions options;
  options.checkpoint_memory_bytes = GetParam();
  TestEngine engine(options, {.max_unbounded_tokens = 1 << 16});
  Conversation talk{engine.NewSession().id, {}};
  for (uint32_t turn = 0; turn < 8; ++turn) talk.Say(engine, 30 + 190 * turn, 40 + 70 * turn, turn);
  std::mt19937 random(11);
  while (!talk.tokens.empty()) {
    const auto position = std::uniform_int_distribution<size_t>(0, talk.tokens.size())(random);
    const RewindOptions where{.session_id = talk.id, .position = position};
    RewindOptions asked = where;
    asked.dry_run = true;
    const std::vector<std::byte> before = State(engine, talk.id);
    const absl::StatusOr<RewindResult> plan = Rewind(engine, asked);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->session.position, std::ssize(talk.tokens));
    EXPECT_EQ(State(engine, talk.id), before);

    const absl::StatusOr<RewindResult> result = Rewind(engine, where);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->replay_tokens, plan->replay_tokens);
    talk.tokens.resize(position);
    const SessionInfo info = *engine->sessions().Get(talk.id, "");
    EXPECT_EQ(info.position, std::ssize(talk.tokens));
    EXPECT_FALSE(info.busy);
    EXPECT_EQ(info.last_token,
              talk.tokens.empty() ? std::nullopt : std::optional(talk.tokens.back()));
    for (const TurnEnd& end : info.turns) EXPECT_LE(end.position, info.position);
    EXPECT_EQ(State(engine, talk.id), StateAfter(engine, talk.tokens)) << position;
    if (position % 3 != 0) talk.Say(engine, 17, 5, static_cast<uint32_t>(position));
    EXPECT_EQ(State(engine, talk.id), StateAfter(engine, talk.tokens));
  }
  EXPECT_TRUE(engine->sessions().Delete(talk.id, "").ok());
  const EngineStats stats = engine.SettledStats();
  EXPECT_EQ(stats.checkpoint_bytes, 0u);
  EXPECT_EQ(stats.token_log_bytes, 0u);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
}

// Budgets for no checkpoint, a few, and all.
INSTANTIATE_TEST_SUITE_P(Memory, RewindWithMemory, testing::Values(0, 200'000, size_t{1} << 30));

TEST(Rewind, ATurnThatWasDrawnIsTakenBackWithoutReadingAnything) {
  TestEngine engine;
  Conversation talk{engine.NewSession().id, {}};
  talk.Say(engine, 20, kTurnCheckpointTokens + 1, 1);
  const int64_t first = std::ssize(talk.tokens);
  talk.Say(engine, 30, 10, 2);
  const SessionInfo info = *engine->sessions().Get(talk.id, "");
  ASSERT_EQ(info.turns.size(), 2u);
  EXPECT_EQ(info.turns[0].position, first);
  EXPECT_EQ(info.turns[0].replay_tokens, 0);
  EXPECT_EQ(info.turns[1].position, std::ssize(talk.tokens));
  const EngineStats stats = engine.SettledStats();
  EXPECT_EQ(stats.token_log_bytes, talk.tokens.size() * sizeof(int32_t));
  EXPECT_GT(stats.checkpoint_bytes, 0u);
  const auto back =
      Rewind(engine, {.session_id = talk.id, .position = static_cast<uint64_t>(first)});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->replay_tokens, 0);
  talk.tokens.resize(static_cast<size_t>(first));
  EXPECT_EQ(State(engine, talk.id), StateAfter(engine, talk.tokens));
}

TEST(Rewind, CopiesOfASessionGoBackOnTheirOwn) {
  TestEngine engine;
  Conversation talk{engine.NewSession().id, {}};
  talk.Say(engine, 700, 90, 1);
  talk.Say(engine, 40, 80, 2);
  const size_t bytes = engine.SettledStats().checkpoint_bytes;
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> receiver;
  engine->sessions().Fork({.session_id = talk.id, .count = 2}, receiver.callback());
  const auto copies = receiver.Wait();
  ASSERT_TRUE(copies.ok()) << copies.status();
  EXPECT_EQ(engine.SettledStats().checkpoint_bytes, bytes) << "what is shared counts once";
  EXPECT_EQ(engine.SettledStats().token_log_bytes, 3 * talk.tokens.size() * sizeof(int32_t));
  EXPECT_TRUE(engine->sessions().Delete(talk.id, "").ok());
  const std::string& id = copies->front().id;
  ASSERT_TRUE(Rewind(engine, {.session_id = id, .position = 790}).ok());
  EXPECT_EQ(State(engine, id),
            StateAfter(engine, {talk.tokens.begin(), talk.tokens.begin() + 790}));
  EXPECT_EQ(State(engine, copies->back().id), StateAfter(engine, talk.tokens));
}

TEST(Rewind, SaysWhatItCannotDo) {
  TestEngine engine;
  SessionOptions options;
  options.prompt = SomeTokens(20, 1);
  const std::string id = engine.NewSession(options).id;
  const absl::Status beyond = Rewind(engine, {.session_id = id, .position = 21}).status();
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(beyond.message(), "position: expected at most 20, the session's, got 21");
  EXPECT_EQ(Rewind(engine, {.session_id = id, .position = UINT64_MAX}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsNotFound(
      Rewind(engine, {.session_id = id, .tenant = "eve", .position = 1}).status()));
  options.keep_tokens = false;
  const SessionInfo without = engine.NewSession(options);
  EXPECT_FALSE(without.keeps_tokens);
  engine.Run(Turn(without.id, SomeTokens(600, 2), 100));
  const absl::Status none = Rewind(engine, {.session_id = without.id, .position = 3}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("keeps no tokens (keep_tokens)"));
  EXPECT_TRUE(engine->sessions().Get(without.id, "")->turns.empty());
  const EngineStats stats = engine.SettledStats();
  EXPECT_EQ(stats.token_log_bytes, 20 * sizeof(int32_t));
  EXPECT_EQ(stats.checkpoint_bytes, 0u);
}

TEST(Rewind, StaysAsItWasIfItIsCancelled) {
  EngineOptions options;
  options.checkpoint_memory_bytes = 0;
  options.max_batch_tokens = 16;
  TestEngine engine(options);
  Conversation talk{engine.NewSession().id, {}};
  talk.Say(engine, 100, 30, 1);
  const std::vector<std::byte> before = State(engine, talk.id);
  const int64_t step = engine.model().gate().steps() + 3;
  engine.model().gate().CloseAt(step);
  const auto cancel = std::make_shared<CancelSignal>();
  Receiver<absl::StatusOr<RewindResult>> receiver;
  engine->sessions().Rewind({.session_id = talk.id, .position = 90}, cancel, receiver.callback());
  engine.model().gate().AwaitEntered(step);
  EXPECT_TRUE(engine->sessions().Get(talk.id, "")->busy);
  cancel->Cancel();
  engine.model().gate().Open();
  EXPECT_TRUE(absl::IsCancelled(receiver.Wait().status()));
  EXPECT_EQ(State(engine, talk.id), before);
  const SessionInfo info = *engine->sessions().Get(talk.id, "");
  EXPECT_EQ(info.position, 130);
  EXPECT_EQ(info.last_token, talk.tokens.back());
  talk.Say(engine, 12, 12, 3);
  EXPECT_EQ(State(engine, talk.id), StateAfter(engine, talk.tokens));

  // The session is deleted while the rewind prefills, for 125 iterations.
  talk.Say(engine, 2000, 1, 4);
  const int64_t later = engine.model().gate().steps() + 2;
  engine.model().gate().CloseAt(later);
  Receiver<absl::StatusOr<RewindResult>> deleted;
  engine->sessions().Rewind({.session_id = talk.id, .position = 2000}, nullptr, deleted.callback());
  engine.model().gate().AwaitEntered(later);
  std::thread deleter([&] { EXPECT_TRUE(engine->sessions().Delete(talk.id, "").ok()); });
  // Nobody knows when the call is posted: until then an iteration may go on now and then.
  for (int64_t one = later; one < later + 100 && !deleted.has_value(); ++one) {
    absl::SleepFor(absl::Milliseconds(100));
    engine.model().gate().CloseAt(one + 1);
  }
  engine.model().gate().Open();
  deleter.join();
  EXPECT_TRUE(absl::IsCancelled(deleted.Wait().status()));
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

TEST(Rewind, AfterACancelledPromptTheLogIsWhatWasRead) {
  EngineOptions options;
  options.max_batch_tokens = 16;
  TestEngine engine(options);
  Conversation talk{engine.NewSession().id, {}};
  talk.Say(engine, 20, 10, 1);
  const int64_t step = engine.model().gate().steps() + 3;
  engine.model().gate().CloseAt(step);
  const std::vector<int32_t> prompt = SomeTokens(200, 2);
  const auto stream = engine.Start(Turn(talk.id, prompt, 10));
  engine.model().gate().AwaitEntered(step);
  stream->Cancel();
  engine.model().gate().Open();
  ReadAll(*stream);
  const int64_t position = engine->sessions().Get(talk.id, "")->position;
  ASSERT_GT(position, 30);
  ASSERT_LT(position, 230);
  talk.tokens.insert(talk.tokens.end(), prompt.begin(), prompt.begin() + position - 30);
  for (const int64_t to : {position, position - 7, int64_t{25}}) {
    const auto back =
        Rewind(engine, {.session_id = talk.id, .position = static_cast<uint64_t>(to)});
    ASSERT_TRUE(back.ok()) << back.status();
    talk.tokens.resize(static_cast<size_t>(to));
    EXPECT_EQ(State(engine, talk.id), StateAfter(engine, talk.tokens)) << to;
  }
}

TEST(Rewind, PenaltiesCountTheWholeSession) {
  TestEngine engine;
  GenerateRequest whole = SampleRequest(SomeTokens(40, 1), 0);
  Conversation talk{engine.NewSession().id, {}};
  talk.Say(engine, 40, 8, 1);
  whole.prompt = talk.tokens;
  whole.prompt.push_back(7);
  GenerateRequest turn = Turn(talk.id, {7}, 30);
  for (GenerateRequest* request : {&whole, &turn}) {
    request->stop.max_tokens = 30;
    request->sampling.repetition_penalty = 1.5f;
  }
  EXPECT_EQ(engine.Run(turn).of[0].tokens, engine.Run(whole).of[0].tokens);
}

// --- checkpoints alone ---

TEST(Checkpoints, NTokensBackNeedFewerThanNAndTheSpacing) {
  Parts parts;
  Checkpoints checkpoints(size_t{1} << 30, parts.pool);
  std::mt19937 random(3);
  Session session;
  session.state = *parts.pool.Acquire(parts.model.layout(), 16, parts.model.layout().bytes_cap(16));
  int64_t widest = 1;
  for (int i = 0; i < 300; ++i) {
    const int64_t step = std::uniform_int_distribution(1, 900)(random);
    widest = std::max(widest, step);
    parts.pool.Grow(session.state, session.state.position + step);
    checkpoints.Add(session, checkpoints.Copy(session.state));
    const int64_t now = session.state.position;
    for (int64_t back = 1; back < now; back += 1 + back / 50) {
      const StateSnapshot* from = checkpoints.Before(session, now - back);
      ASSERT_LT(now - back - (from == nullptr ? 0 : from->position), std::max(back, widest));
    }
  }
  EXPECT_LT(checkpoints.Find("").size(), 30u);
  EXPECT_EQ(checkpoints.bytes(),
            checkpoints.Find("").size() * parts.pool.SnapshotBytes(session.state));
  parts.pool.Release(session.state);
}

TEST(Checkpoints, TheBudgetTakesFromTheSessionUsedLongestAgo) {
  Parts parts;
  std::vector<Session> sessions(3);
  const model::StateLayout& layout = parts.model.layout();
  for (Session& session : sessions) {
    session.info.id = std::to_string(&session - sessions.data());
    session.state =
        *parts.pool.Acquire(layout, kernels::kMinSlotCap, layout.bytes_cap(kernels::kMinSlotCap));
  }
  for (Session& session : sessions) parts.pool.Grow(session.state, 100);
  const size_t each = parts.pool.SnapshotBytes(sessions[0].state);
  Checkpoints checkpoints(5 * each, parts.pool);
  for (int round = 0; round < 2; ++round) {
    for (Session& session : sessions) {
      parts.pool.Grow(session.state, round == 0 ? 100 : 1000);  // far enough apart to stay
      checkpoints.Add(session, checkpoints.Copy(session.state));
    }
  }
  EXPECT_EQ(checkpoints.bytes(), 5 * each);
  ASSERT_EQ(checkpoints.Find("0").size(), 1u);
  EXPECT_EQ(checkpoints.Find("0")[0]->position, 1000) << "its earliest goes";
  EXPECT_EQ(checkpoints.Before(sessions[0], 999), nullptr);
  EXPECT_EQ(checkpoints.Find("1").size(), 2u);
  checkpoints.ForgetAfter(sessions[1], 100);
  EXPECT_EQ(checkpoints.bytes(), 4 * each);
  for (Session& session : sessions) checkpoints.Forget(session);
  EXPECT_EQ(checkpoints.bytes(), 0u);
  EXPECT_EQ(Checkpoints(each - 1, parts.pool).Copy(sessions[0].state), nullptr) << "too small";
  for (Session& session : sessions) parts.pool.Release(session.state);
}

TEST(Checkpoints, ALargeCopyTakesTheRoomOfOneThatWent) {
  Parts parts;
  const FakeModel model({.full_attention = true, .max_unbounded_tokens = 1 << 20});
  const model::StateLayout& layout = model.layout();
  Session session;
  session.state = *parts.pool.Acquire(layout, 256, layout.bytes_cap(256));
  ASSERT_TRUE(parts.pool.Commit(session.state, 600'000).ok());
  Checkpoints checkpoints(size_t{1} << 30, parts.pool);
  for (const int64_t position : {570'000, 580'000}) {
    parts.pool.Grow(session.state, position);
    ASSERT_GE(parts.pool.SnapshotBytes(session.state), kLargeBytes);
    checkpoints.Add(session, checkpoints.Copy(session.state));
  }
  const size_t both = checkpoints.bytes();
  checkpoints.EvictOne();
  EXPECT_EQ(checkpoints.bytes(), both) << "its room is kept";
  parts.pool.Grow(session.state, 590'000);
  std::shared_ptr<const StateSnapshot> next = checkpoints.Copy(session.state);
  std::vector<std::byte> state(next->size);
  parts.pool.CopyOut(session.state, state);
  EXPECT_TRUE(std::equal(state.begin(), state.end(), next->bytes.get())) << "its own bytes";
  EXPECT_EQ(checkpoints.bytes(), next->size + checkpoints.Find("")[0]->size) << "and taken";
  checkpoints.Forget(session);
  next.reset();
  EXPECT_EQ(checkpoints.bytes(), 0u) << "nothing is kept for none";
  parts.pool.Release(session.state);
}

}  // namespace
}  // namespace ovq::engine::test
