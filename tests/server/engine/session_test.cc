// Sessions: turns, the pending token, tenants, expiry, and being used by one call at a time.
#include "server/engine/common/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

TEST(Session, ACharacterThatTwoTurnsShareIsWhole) {
  TestEngine engine({}, {}, {}, [](FakeModel& model) { model.Script(2, "\xe2\x82\xac!"); });
  const std::string id = engine.NewSession().id;
  EXPECT_EQ(engine.Run(Turn(id, {'a', 'b'}, 2)).of[0].text, "\xef\xbf\xbd");
  EXPECT_EQ(engine.Run(Turn(id, {}, 2)).of[0].text, "\xe2\x82\xac!");
}

TEST(Session, KeepsTheVariantItWasCreatedWith) {
  TestEngine engine({}, {.exact_too = true});
  SessionOptions options;
  options.variant = "exact";
  options.prompt = SomeTokens(30, 1);
  Receiver<absl::StatusOr<SessionInfo>> receiver;
  engine->sessions().Create(options, receiver.callback());
  const absl::StatusOr<SessionInfo> created = receiver.Wait();
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(engine.NewSession().cache_policy, "model");
  const Answers turn = engine.Run(Turn(created->id, SomeTokens(300, 2), 8, 5));
  GenerateRequest whole = SampleRequest(SomeTokens(30, 1), 8, 5);
  const std::vector<int32_t> more = SomeTokens(300, 2);
  whole.prompt.insert(whole.prompt.end(), more.begin(), more.end());
  whole.variant = "exact";
  EXPECT_EQ(engine.Run(whole).of[0].tokens, turn.of[0].tokens);
  const SessionInfo info = *engine->sessions().Get(created->id, "");
  const model::StateLayout& layout = engine.model().layout(1);
  EXPECT_EQ(info.cache_policy, "exact");
  EXPECT_EQ(info.state_bytes, layout.bytes_at(info.position - 1, kDefaultSlotCap));
  EXPECT_EQ(info.state_bytes_cap, layout.bytes_cap(kDefaultSlotCap));
  EXPECT_EQ(info.live_slots, layout.LiveSlotsAt(info.position - 1, kDefaultSlotCap));
  EXPECT_NE(info.state_bytes_cap, engine.model().layout().bytes_cap(kDefaultSlotCap));
}

TEST(Session, TurnsEqualOneLongPrompt) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  std::vector<int32_t> conversation;
  std::vector<int32_t> last_answer;
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<int32_t> prompt = SomeTokens(20 + 31 * turn, 60 + turn);
    const int64_t before = static_cast<int64_t>(conversation.size());
    const Answers answers = engine.Run(Turn(id, prompt, 8, 5));
    ASSERT_TRUE(answers.status.ok()) << answers.status;
    EXPECT_EQ(answers.started->session_id, id);
    EXPECT_EQ(answers.started->cached_tokens, before);
    EXPECT_EQ(answers.of[0].finished->usage.cached_tokens, before);
    EXPECT_EQ(answers.of[0].finished->usage.prompt_tokens, static_cast<int64_t>(prompt.size()));
    conversation.insert(conversation.end(), prompt.begin(), prompt.end());
    // A one-shot request with the whole conversation draws the same tokens.
    EXPECT_EQ(engine.Run(SampleRequest(conversation, 8, 5)).of[0].tokens, answers.of[0].tokens);
    last_answer = answers.of[0].tokens;
    conversation.insert(conversation.end(), last_answer.begin(), last_answer.end());
    EXPECT_EQ(answers.of[0].finished->usage.position, static_cast<int64_t>(conversation.size()));
  }
  const SessionInfo info = *engine->sessions().Get(id, "");
  EXPECT_EQ(info.position, static_cast<int64_t>(conversation.size()));
  EXPECT_EQ(info.generated_tokens_total, 32);
  EXPECT_EQ(info.prompt_tokens_total, info.position - 32);
  EXPECT_FALSE(info.busy);
  EXPECT_EQ(info.slot_cap, kDefaultSlotCap);
  const model::StateLayout& layout = engine.model().layout();
  EXPECT_EQ(info.state_bytes, layout.bytes_at(info.position - 1, kDefaultSlotCap));
  EXPECT_EQ(info.state_bytes_cap, layout.bytes_cap(kDefaultSlotCap));
  EXPECT_EQ(info.live_slots, layout.LiveSlotsAt(info.position - 1, kDefaultSlotCap));

  // A session made from the whole conversation has the same state, to the byte.
  SessionOptions options;
  options.prompt = conversation;
  const SessionInfo copy = engine.NewSession(options);
  EXPECT_EQ(copy.position, info.position);
  EXPECT_EQ(State(engine, copy.id), State(engine, id));
}

TEST(Session, EmptyPromptContinuesFromThePendingToken) {
  TestEngine engine;
  const std::vector<int32_t> prompt = SomeTokens(33, 2);
  const std::vector<int32_t> expected = engine.Run(SampleRequest(prompt, 12)).of[0].tokens;

  SessionOptions options;
  options.prompt = prompt;
  const SessionInfo made = engine.NewSession(options);
  EXPECT_EQ(made.position, 33);
  EXPECT_EQ(made.prompt_tokens_total, 33);
  std::vector<int32_t> tokens = engine.Run(Turn(made.id, {}, 5)).of[0].tokens;
  const Answers more = engine.Run(Turn(made.id, {}, 7));
  EXPECT_EQ(more.started->cached_tokens, 38);
  EXPECT_EQ(more.started->prompt_tokens, 0);
  tokens.insert(tokens.end(), more.of[0].tokens.begin(), more.of[0].tokens.end());
  EXPECT_EQ(tokens, expected);

  // Prefill in parts of any length gives the same state, single tokens and empty parts included.
  const std::string parts = engine.NewSession().id;
  for (int32_t token : prompt) {
    EXPECT_TRUE(engine.Run(Turn(parts, {token}, 0)).status.ok());
    EXPECT_TRUE(engine.Run(Turn(parts, {}, 0)).status.ok());
  }
  EXPECT_EQ(engine->sessions().Get(parts, "")->position, 33);
  EXPECT_EQ(engine.Run(Turn(parts, {}, 12)).of[0].tokens, expected);

  const std::string fresh = engine.NewSession().id;
  const absl::Status status = engine->Submit(Turn(fresh, {}, 5), std::make_shared<TokenStream>());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("prompt: expected at least one token"));
  EXPECT_FALSE(engine->sessions().Get(fresh, "")->busy);
}

TEST(Session, CancelledTurnKeepsWhatWasDelivered) {
  TestEngine engine;
  engine.model().gate().CloseAt(4);
  const std::vector<int32_t> prompt = SomeTokens(10, 2);
  const std::string id = engine.NewSession().id;
  const std::shared_ptr<TokenStream> stream = engine.Start(Turn(id, prompt, 100));
  engine.model().gate().AwaitEntered(4);
  stream->Cancel();
  engine.model().gate().Open();
  const Answers answers = ReadAll(*stream);
  EXPECT_EQ(answers.status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(answers.of[0].finished);
  EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kCancelled);
  ASSERT_EQ(answers.of[0].tokens.size(), 4u);
  EXPECT_EQ(answers.of[0].finished->usage.position, 14);
  EXPECT_EQ(engine->sessions().Get(id, "")->position, 14);
  const Answers rest = engine.Run(Turn(id, {}, 6));
  std::vector<int32_t> tokens = answers.of[0].tokens;
  tokens.insert(tokens.end(), rest.of[0].tokens.begin(), rest.of[0].tokens.end());
  EXPECT_EQ(tokens, engine.Run(SampleRequest(prompt, 10)).of[0].tokens);
}

TEST(Session, CancelledDuringPrefillStandsWhereItGot) {
  EngineOptions options;
  options.max_batch_tokens = 4;
  TestEngine engine(options);
  const std::vector<int32_t> prompt = SomeTokens(20, 2);
  SessionOptions begin;
  begin.prompt = {9};  // its pending token is the turn's first token
  const std::string id = engine.NewSession(begin).id;
  engine.model().gate().CloseAt(2);
  const std::shared_ptr<TokenStream> stream = engine.Start(Turn(id, prompt, 100));
  engine.model().gate().AwaitEntered(2);
  stream->Cancel();
  engine.model().gate().Open();
  EXPECT_EQ(ReadAll(*stream).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine->sessions().Get(id, "")->position, 8);
  const std::vector<int32_t> rest(prompt.begin() + 7, prompt.end());
  const std::vector<int32_t> tokens = engine.Run(Turn(id, rest, 5)).of[0].tokens;
  std::vector<int32_t> whole = {9};
  whole.insert(whole.end(), prompt.begin(), prompt.end());
  EXPECT_EQ(tokens, engine.Run(SampleRequest(whole, 5)).of[0].tokens);
}

TEST(Session, ATurnThatIsSentAgainIsCarriedOutOnce) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  GenerateRequest turn = Turn(id, {1, 2}, 3);
  turn.expected_position = 0;
  const Answers first = engine.Run(turn);
  EXPECT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.started->position, 0);
  const auto refusal = [&](const GenerateRequest& request) {
    return engine->Submit(request, std::make_shared<TokenStream>());
  };
  const absl::Status again = refusal(turn);
  EXPECT_TRUE(absl::IsFailedPrecondition(again));
  EXPECT_EQ(std::string(again.message()), "expected_position: the session has 5 tokens, not 0");
  EXPECT_EQ(GetErrorFacts(again), ErrorFacts{.position = 5});
  EXPECT_EQ(engine->sessions().Get(id, "")->position, 5);
  turn.expected_position = 5;
  EXPECT_EQ(engine.Run(turn).started->position, 5);
  turn.expected_position = ~uint64_t{0};
  EXPECT_TRUE(absl::IsFailedPrecondition(refusal(turn)));
  GenerateRequest one_shot = SampleRequest({1, 2}, 3);
  EXPECT_EQ(engine.Run(one_shot).started->position, 0);
  one_shot.expected_position = 0;
  EXPECT_EQ(std::string(refusal(one_shot).message()),
            "expected_position: expected none without session_id, got 0");
  one_shot.expected_position = (uint64_t{1} << 32) + 5;
  EXPECT_EQ(std::string(refusal(one_shot).message()),
            "expected_position: expected none without session_id, got 4294967301");
}

TEST(Session, OneCallAtATime) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  engine.model().gate().CloseAt(1);
  const std::shared_ptr<TokenStream> first = engine.Start(Turn(id, {1, 2}, 3));
  engine.model().gate().AwaitEntered(1);
  const absl::Status second = engine->Submit(Turn(id, {3}, 3), std::make_shared<TokenStream>());
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr(id));
  engine.model().gate().Open();
  // The session is idle again once the last event can be read, before the stream is closed.
  while (std::optional<StreamEvent> event = Pop(*first)) {
    if (!event->finished) continue;
    EXPECT_TRUE(engine.Run(Turn(id, {3}, 3)).status.ok());
  }
  EXPECT_TRUE(first->status().ok());
}

TEST(Session, BusyIsVisibleAndGuardsTheState) {
  TestEngine engine({}, {}, {});
  const std::string id = engine.NewSession().id;
  const std::shared_ptr<TokenStream> parked = engine.Start(Turn(id, {1, 2}, 300), 4);
  while (!parked->full()) engine.AwaitBoundary();
  EXPECT_TRUE(engine->sessions().Get(id, "")->busy);
  EXPECT_EQ(engine->sessions().Export(id, "").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine.SettledStats().sessions_active, 1);
  parked->Cancel();
  ReadAll(*parked);
  EXPECT_FALSE(engine->sessions().Get(id, "")->busy);
  const EngineStats stats = engine.SettledStats();
  EXPECT_EQ(stats.sessions_active, 0);
  EXPECT_EQ(stats.sessions_idle, 1);
  EXPECT_GT(stats.live_slots, 0);
  EXPECT_EQ(stats.equivalent_kv_cache_bytes,
            static_cast<size_t>(engine->sessions().Get(id, "")->position) * 1000);
}

TEST(Session, OtherTenantsSeeNothing) {
  TestEngine engine;
  SessionOptions options;
  options.tenant = "blue";
  const std::string id = engine.NewSession(options).id;
  const absl::Status unknown = engine->sessions().Get("0123", "red").status();
  const absl::Status foreign = engine->sessions().Get(id, "red").status();
  EXPECT_EQ(foreign.code(), absl::StatusCode::kNotFound);
  const auto words = [](const absl::Status& status, const std::string& name) {
    std::string text(status.message());
    return text.replace(text.find(name), name.size(), "ID");
  };
  EXPECT_EQ(words(foreign, id), words(unknown, "0123"));
  GenerateRequest request = Turn(id, {1}, 1);
  request.tenant = "red";
  EXPECT_EQ(engine->Submit(request, std::make_shared<TokenStream>()).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(engine->sessions().Delete(id, "red").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine->sessions().Export(id, "red").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(engine->sessions().List("red", 10, "")->sessions.empty());
  EXPECT_EQ(engine->sessions().List("blue", 10, "")->sessions.size(), 1u);
  request.tenant = "blue";
  EXPECT_TRUE(engine.Run(request).status.ok());
  EXPECT_TRUE(engine->sessions().Delete(id, "blue").ok());
  EXPECT_EQ(engine->sessions().Get(id, "blue").status().code(), absl::StatusCode::kNotFound);
}

TEST(Session, ListIsPagedById) {
  TestEngine engine;
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) {
    ids.push_back(engine.NewSession().id);
    EXPECT_EQ(ids.back().size(), 32u);
    SessionOptions other;
    other.tenant = "other";
    engine.NewSession(other);
  }
  std::sort(ids.begin(), ids.end());
  std::vector<std::string> listed;
  std::string token;
  int pages = 0;
  do {
    const SessionPage page = *engine->sessions().List("", 3, token);
    EXPECT_LE(page.sessions.size(), 3u);
    for (const SessionInfo& info : page.sessions) listed.push_back(info.id);
    token = page.next_page_token;
    ++pages;
  } while (!token.empty());
  EXPECT_EQ(listed, ids);
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(engine->sessions().List("", 1001, "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Session, DeletingABusyOneCancelsItsRun) {
  TestEngine engine;
  const std::string id = engine.NewSession().id;
  const std::shared_ptr<TokenStream> stream = engine.Start(Turn(id, {1, 2}, 1000000), 4);
  while (!stream->full()) engine.AwaitBoundary();
  EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
  EXPECT_EQ(ReadAll(*stream).status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
  EXPECT_EQ(engine.SettledStats().sessions_active, 0);
}

TEST(Session, IdleOnesExpireAndUseKeepsThemAlive) {
  Receiver<std::string> expired;
  EngineEvents events;
  events.session_event = [&, callback = expired.callback()](const SessionReport& report) {
    if (std::string(report.event) == "expire") callback(report.event);
  };
  TestEngine engine({}, {}, std::move(events));
  SessionOptions options;
  options.ttl = absl::Milliseconds(500);
  const std::string id = engine.NewSession(options).id;
  // A session with a running request is not idle, even for longer than its time to live.
  const std::shared_ptr<TokenStream> stream = engine.Start(Turn(id, {1, 2}, 300), 4);
  const absl::Time later = absl::Now() + absl::Milliseconds(600);
  while (absl::Now() < later) EXPECT_TRUE(engine->sessions().Get(id, "").ok());
  EXPECT_FALSE(expired.has_value());
  stream->Cancel();
  ReadAll(*stream);
  const SessionInfo info = *engine->sessions().Get(id, "");
  EXPECT_EQ(info.expires, info.last_used + absl::Milliseconds(500));
  expired.Wait();
  EXPECT_GE(absl::Now(), info.expires);
  EXPECT_EQ(engine->sessions().Get(id, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

TEST(Session, IdsFollowFromTheSeedOnlyInTests) {
  EngineOptions seeded;
  seeded.seed = 7;
  std::vector<std::string> ids;
  for (const EngineOptions& options : {seeded, seeded, EngineOptions{}, EngineOptions{}}) {
    ids.push_back(TestEngine(options).NewSession().id);
  }
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_NE(ids[1], ids[2]);
  EXPECT_NE(ids[2], ids[3]);
}

TEST(Session, CreationIsRefusedAtOnceWhenThereIsNoRoom) {
  EngineOptions options;
  options.max_sessions = 3;
  FakeModel probe;
  const size_t cap = probe.layout().bytes_cap(kDefaultSlotCap);
  options.state_memory_bytes = 2 * cap + probe.layout().bytes_cap(8);
  TestEngine engine(options);
  engine.NewSession();
  const std::string second = engine.NewSession().id;
  const auto create = [&](SessionOptions session) {
    Receiver<absl::StatusOr<SessionInfo>> receiver;
    engine->sessions().Create(session, receiver.callback());
    return receiver.Wait().status();
  };
  const absl::Status memory = create({});
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()), HasSubstr(std::to_string(cap) + " bytes needed"));
  SessionOptions small;
  small.slot_cap = 8;
  EXPECT_TRUE(create(small).ok());
  EXPECT_TRUE(engine->sessions().Delete(second, "").ok());
  EXPECT_TRUE(create(small).ok());
  const absl::Status sessions = create(small);
  EXPECT_EQ(sessions.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sessions.message()), HasSubstr("sessions"));
  small.slot_cap = 1;
  EXPECT_EQ(create(small).code(), absl::StatusCode::kInvalidArgument);
  small = {};
  small.ttl = -absl::Seconds(1);
  EXPECT_EQ(create(small).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ovq::engine::test
