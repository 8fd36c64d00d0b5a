// Sessions that are exported and imported again, into this engine or another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "server/engine/common/session_image.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

absl::StatusOr<SessionInfo> Import(TestEngine& engine, SessionImage image,
                                   SessionOptions options = {}) {
  Receiver<absl::StatusOr<SessionInfo>> receiver;
  engine->sessions().Import(std::move(image), std::move(options), receiver.callback());
  return receiver.Wait();
}

SessionInfo NewTalkedSession(TestEngine& engine, bool keep_tokens = true) {
  SessionOptions options;
  options.prompt = SomeTokens(700, 3);
  options.slot_cap = 40;
  options.keep_tokens = keep_tokens;
  const SessionInfo made = engine.NewSession(options);
  engine.Run(Turn(made.id, SomeTokens(30, 4), 90));
  return *engine->sessions().Get(made.id, "");
}

class ImportHow : public testing::TestWithParam<bool> {};

TEST_P(ImportHow, GoesOnInAnotherEngineWhereItWasExported) {
  EngineOptions options;
  options.trust_session_files = GetParam();
  std::vector<std::string> told;
  EngineEvents events;
  events.session_event = [&](const SessionReport& report) { told.push_back(report.event); };
  TestEngine from, to(options, {}, events);
  const SessionInfo session = NewTalkedSession(from);
  const absl::StatusOr<SessionImage> image = from->sessions().Export(session.id, "");
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_TRUE(to->sessions().CheckImport(*image).ok());
  SessionOptions how;
  how.key = "blue";
  how.ttl = absl::Minutes(3);
  how.tenant = "bob";
  const absl::StatusOr<SessionInfo> made = Import(to, *image, how);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->id.substr(0, 5), "blue.");
  EXPECT_EQ(made->tenant, "bob");
  EXPECT_EQ(made->expires, made->last_used + absl::Minutes(3));
  EXPECT_EQ(made->position, session.position);
  EXPECT_EQ(made->last_token, session.last_token);
  EXPECT_EQ(made->slot_cap, 40);
  EXPECT_TRUE(made->keeps_tokens);
  EXPECT_EQ(made->state_bytes, session.state_bytes);
  EXPECT_THAT(told, testing::ElementsAre("import"));
  EXPECT_EQ(*CopyState(*to, made->id, "bob"), State(from, session.id));
  const std::vector<int32_t> next = from.Run(Turn(session.id, SomeTokens(50, 5), 20)).of[0].tokens;
  GenerateRequest turn = Turn(made->id, SomeTokens(50, 5), 20);
  turn.tenant = "bob";
  EXPECT_EQ(to.Run(turn).of[0].tokens, next);
  EXPECT_EQ(*CopyState(*to, made->id, "bob"), State(from, session.id));
}

// Encodes and reads the image; the writer and the reader may have keys.
SessionImage OverBytes(SessionImage image, const FleetKeys* signs = nullptr,
                       const FleetKeys* knows = nullptr) {
  const EncodedSession file = EncodeSession(std::move(image), signs);
  SessionReader reader([](const SessionImage&) { return absl::OkStatus(); }, /*digest=*/true,
                       knows);
  for (const std::string* piece : {&file.head, &file.state, &file.tail}) {
    EXPECT_TRUE(reader.Add(*piece).ok());
  }
  return *reader.Finish();
}

TEST_P(ImportHow, AFileJoinedWithDeltasIsTheSessionThatStayed) {
  EngineOptions options;
  options.trust_session_files = GetParam();
  int64_t rows = 0;
  EngineEvents events;
  events.step = [&](const IterationReport& report) { rows += report.prefill_tokens; };
  TestEngine from, to(options, {}, events);
  const std::string id = NewTalkedSession(from).id;
  const SessionImage file = *from->sessions().Export(id, "");
  SessionImage joined = file;
  for (const uint32_t seed : {6u, 7u, 8u}) {
    const SessionBase since = MakeSessionBase(*joined.tokens);
    if (seed < 8) from.Run(Turn(id, SomeTokens(100, seed), 30));  // the last delta is empty
    const absl::StatusOr<SessionImage> delta = from->sessions().Export(id, "", since);
    ASSERT_TRUE(delta.ok()) << delta.status();
    EXPECT_TRUE(delta->state.empty());
    joined = OverBytes(Joined(joined, *delta));
  }
  EXPECT_EQ(joined.position, file.position);
  EXPECT_EQ(joined.unread, 2 * 130);
  EXPECT_TRUE(to->sessions().CheckImport(joined).ok());
  const absl::StatusOr<SessionInfo> made = Import(to, joined);
  ASSERT_TRUE(made.ok()) << made.status();
  to.AwaitBoundary();
  EXPECT_EQ(rows, GetParam() ? 2 * 130 : file.position + 2 * 130);
  const SessionImage stayed = *from->sessions().Export(id, ""),
                     moved = *to->sessions().Export(made->id, "");
  EXPECT_EQ(moved.state, stayed.state);
  EXPECT_EQ(moved.position, stayed.position);
  EXPECT_EQ(moved.pending, stayed.pending);
  EXPECT_EQ(moved.tokens, stayed.tokens);
  if (GetParam()) {
    EXPECT_EQ(moved.turn_ends, stayed.turn_ends);
    EXPECT_EQ(made->prompt_tokens_total, 2 * 130);
  }
  const std::vector<int32_t> next = from.Run(Turn(id, SomeTokens(50, 9), 20)).of[0].tokens;
  EXPECT_EQ(to.Run(Turn(made->id, SomeTokens(50, 9), 20)).of[0].tokens, next);
  EXPECT_EQ(State(to, made->id), State(from, id));
}

// After a cancelled prompt the state has consumed all tokens, and none is pending.
TEST(Import, AJoinedFileMayHaveNoTokenThatWaits) {
  EngineOptions options;
  options.trust_session_files = true;
  TestEngine from, to(options);
  const std::string id = NewTalkedSession(from).id;
  const SessionImage file = *from->sessions().Export(id, "");
  from.Run(Turn(id, SomeTokens(100, 6), 30));
  SessionImage later = *from->sessions().Export(id, "", MakeSessionBase(*file.tokens));
  later.tokens->pop_back();
  later.turn_ends.pop_back();
  later.pending.reset();
  const auto made = Import(to, OverBytes(Joined(file, later)));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->position, later.position);
  EXPECT_EQ(made->last_token, std::nullopt);
  EXPECT_EQ(State(to, made->id), State(from, id));
}

TEST(Import, AJoinedFileWhoseTokensAreNotReadInTimeLeavesNothing) {
  EngineOptions options;
  options.trust_session_files = true;
  TestEngine from, to(options);
  const std::string id = NewTalkedSession(from).id;
  const SessionImage file = *from->sessions().Export(id, "");
  from.Run(Turn(id, SomeTokens(100, 6), 30));
  const SessionImage joined =
      Joined(file, *from->sessions().Export(id, "", MakeSessionBase(*file.tokens)));
  SessionOptions late;
  late.deadline = to->options().clock.steady();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Import(to, joined, late).status()));
  const EngineStats stats = to.SettledStats();
  EXPECT_EQ(stats.state_bytes_reserved + stats.token_log_bytes + stats.checkpoint_bytes, 0u);
}

TEST(Delta, IsOfTheSessionThatTheEarlierExportWasOf) {
  std::vector<std::string> told;
  EngineEvents events;
  events.session_event = [&](const SessionReport& report) { told.push_back(report.event); };
  TestEngine engine({}, {}, events);
  const SessionInfo session = NewTalkedSession(engine);
  const SessionImage file = *engine->sessions().Export(session.id, "");
  const SessionBase since = MakeSessionBase(*file.tokens);
  const auto expect_refused = [&](const SessionBase& base, const std::string& words) {
    const absl::Status status = engine->sessions().Export(session.id, "", base).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  EXPECT_TRUE(engine->sessions().Export(session.id, "", since).ok());
  EXPECT_TRUE(
      engine->sessions().Export(session.id, "", MakeSessionBase({})).ok());  // all of its tokens
  expect_refused({since.length - 1, since.digest}, "are not those of the export");
  Receiver<absl::StatusOr<RewindResult>> receiver;
  engine->sessions().Rewind({.session_id = session.id, .position = 710}, nullptr,
                            receiver.callback());
  ASSERT_TRUE(receiver.Wait().ok());
  expect_refused(since, "has 710 tokens, but the export that `since` names had 820");
  engine.Run(Turn(session.id, SomeTokens(300, 9), 1));
  expect_refused(since, "its first 820 tokens are not those of the export");
  EXPECT_TRUE(absl::IsNotFound(engine->sessions().Export(session.id, "eve", since).status()));
  const SessionInfo forgetful = NewTalkedSession(engine, /*keep_tokens=*/false);
  EXPECT_THAT(std::string(engine->sessions().Export(forgetful.id, "", since).status().message()),
              HasSubstr("keeps no tokens"));
  engine.AwaitBoundary();
  EXPECT_THAT(told, testing::ElementsAre("open", "export", "export_delta", "export_delta", "rewind",
                                         "open"));
}

INSTANTIATE_TEST_SUITE_P(Trust, ImportHow, testing::Bool());

TEST(Import, OnlyATrustedFileNeedsNoTokens) {
  EngineOptions trusts;
  trusts.trust_session_files = true;
  TestEngine checks, takes(trusts);
  const SessionInfo session = NewTalkedSession(checks, /*keep_tokens=*/false);
  const SessionImage image = *checks->sessions().Export(session.id, "");
  const absl::Status refused = Import(checks, image).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("it has no tokens to read again"));
  const auto made = Import(takes, image);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(made->keeps_tokens);
  EXPECT_EQ(State(takes, made->id), State(checks, session.id));
}

std::shared_ptr<const FleetKeys> Keys(const std::string& digits) {
  std::string text;
  for (const char digit : digits) text += std::string(64, digit) + "\n";
  return std::make_shared<const FleetKeys>(*FleetKeys::Parse(text));
}

// An engine without trust_session_files, and how its imports got their states.
struct Importer {
  explicit Importer() {
    EngineEvents events;
    events.session_imported = [this](ImportKind kind) { kinds.push_back(kind); };
    events.step = [this](const IterationReport& report) { rows += report.prefill_tokens; };
    engine = std::make_unique<TestEngine>(EngineOptions(), FakeModel::Options(), events);
  }
  std::vector<ImportKind> kinds;
  int64_t rows = 0;
  std::unique_ptr<TestEngine> engine;
};

TEST(Import, AStateThatTheFleetHasSignedIsTakenAsItIs) {
  const auto old_key = Keys("1"), both = Keys("21"), other = Keys("3");
  TestEngine from;
  const std::string id = NewTalkedSession(from).id;
  const SessionImage file = *from->sessions().Export(id, "");
  Importer to;
  const auto made = Import(*to.engine, OverBytes(file, old_key.get(), both.get()));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(to.rows, 0);
  EXPECT_EQ(State(*to.engine, made->id), State(from, id));
  ASSERT_TRUE(Import(*to.engine, OverBytes(file, old_key.get(), other.get())).ok());
  ASSERT_TRUE(Import(*to.engine, OverBytes(file, nullptr, both.get())).ok());
  to.engine->AwaitBoundary();
  EXPECT_EQ(to.rows, 2 * file.position);
  EXPECT_THAT(to.kinds, testing::ElementsAre(ImportKind::kSigned, ImportKind::kReplayed,
                                             ImportKind::kReplayed));
}

// Only the fleet's signature makes the tokens dispensable, and no token that follows is taken for
// read.
TEST(Import, ASignedFileMayHaveNoTokensOrMore) {
  const auto key = Keys("1"), other = Keys("2");
  TestEngine from;
  const SessionInfo forgetful = NewTalkedSession(from, /*keep_tokens=*/false);
  const SessionImage bare = *from->sessions().Export(forgetful.id, "");
  Importer to;
  EXPECT_THAT(
      std::string(Import(*to.engine, OverBytes(bare, other.get(), key.get())).status().message()),
      HasSubstr("no key of this server has signed its state"));
  const auto made = Import(*to.engine, OverBytes(bare, key.get(), key.get()));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(State(*to.engine, made->id), State(from, forgetful.id));

  const std::string id = NewTalkedSession(from).id;
  const SessionImage file = OverBytes(*from->sessions().Export(id, ""), key.get(), key.get());
  from.Run(Turn(id, SomeTokens(100, 6), 30));
  const SessionImage joined =
      Joined(file, *from->sessions().Export(id, "", MakeSessionBase(*file.tokens)));
  const auto longer = Import(*to.engine, OverBytes(joined, key.get(), key.get()));
  ASSERT_TRUE(longer.ok()) << longer.status();
  to.engine->AwaitBoundary();
  EXPECT_EQ(to.rows, 130);
  EXPECT_EQ(State(*to.engine, longer->id), State(from, id));
  EXPECT_THAT(to.kinds, testing::ElementsAre(ImportKind::kSigned, ImportKind::kSigned));
}

// Whoever has a key may be wrong: kernels are safe all the same.
TEST(Import, ASignedStateThatNoSessionHasIsRefused) {
  const auto key = Keys("1");
  TestEngine from;
  SessionImage image = *from->sessions().Export(NewTalkedSession(from).id, "");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(image.state.data() + from.model().layout().layer(1).fixed_offset, &nan, sizeof nan);
  Importer to;
  const absl::Status refused = Import(*to.engine, OverBytes(image, key.get(), key.get())).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("window[0] is nan"));
  EXPECT_THAT(to.kinds, testing::IsEmpty());
}

TEST(Import, EachMisfitHasItsOwnWords) {
  EngineOptions narrow;
  narrow.max_slot_cap = 39;
  TestEngine engine, narrower(narrow), other({}, {.full_attention = true});
  const SessionImage image = *engine->sessions().Export(NewTalkedSession(engine).id, "");
  const auto refused = [&](TestEngine& by, const SessionImage& what) {
    const absl::Status head = by->sessions().CheckImport(what);
    EXPECT_EQ(Import(by, what).status(), head);
    EXPECT_TRUE(absl::IsFailedPrecondition(head) || absl::IsDataLoss(head)) << head;
    EXPECT_EQ(by.SettledStats().state_bytes_reserved,
              &by == &engine ? by.SettledStats().state_bytes_reserved : 0u);
    return std::string(head.message());
  };
  EXPECT_THAT(refused(narrower, image), HasSubstr("expected at most 39 max_centroids, got 40"));
  EXPECT_THAT(refused(other, image), HasSubstr("states are laid out as"));
  SessionImage wrong = image;
  wrong.cache_policy = "ex\nact";
  EXPECT_THAT(refused(engine, wrong), HasSubstr("no memory of this server is named 'ex\\nact'"));
  wrong = image;
  wrong.model_fingerprint = std::string(64, '0');
  EXPECT_THAT(refused(engine, wrong), HasSubstr("of the model 0000"));
  wrong = image;
  wrong.tokens->at(5) = static_cast<int32_t>(kVocab);
  EXPECT_THAT(refused(engine, wrong), HasSubstr("token 5"));
}

// A session at position 0 must have the initial state: its prefixes may reach others (PrefixCache).
TEST(Import, WithoutTokensASessionIsNew) {
  EngineOptions trusts;
  trusts.trust_session_files = true;
  TestEngine engine(trusts);
  SessionImage image = *engine->sessions().Export(engine.NewSession().id, "");
  ASSERT_EQ(image.position, 0);
  EXPECT_TRUE(Import(engine, image).ok());
  image.state[image.state.size() / 2] = 1;
  const absl::Status refused = Import(engine, image).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("not the one that sessions begin with"));
}

// An image, unlike a file, has no checksums.
TEST(Import, AStateThatNoSessionHasIsRefusedWhereItIsTaken) {
  EngineOptions trusts;
  trusts.trust_session_files = true;
  TestEngine takes(trusts), replays;
  SessionImage image = *takes->sessions().Export(NewTalkedSession(takes).id, "");
  const EngineStats before = takes.SettledStats();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(image.state.data() + takes.model().layout().layer(1).fixed_offset + 5 * sizeof nan,
              &nan, sizeof nan);
  const absl::Status refused = Import(takes, image).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "session file: state of layer 1, fake_window: window[5] is nan, expected a finite "
            "number");
  EXPECT_EQ(takes.SettledStats().state_bytes_reserved, before.state_bytes_reserved);
  EXPECT_TRUE(Import(replays, image).ok()) << "it is not looked at";
}

TEST(Import, RefusalsTakeNothing) {
  EngineOptions options;
  options.trust_session_files = true;
  options.max_sessions = 1;
  TestEngine engine(options);
  const SessionInfo session = NewTalkedSession(engine);
  const SessionImage image = *engine->sessions().Export(session.id, "");
  const EngineStats before = engine.SettledStats();
  EXPECT_TRUE(absl::IsResourceExhausted(Import(engine, image).status()));
  SessionOptions bad;
  bad.ttl = absl::ZeroDuration();
  EXPECT_TRUE(absl::IsInvalidArgument(Import(engine, image, bad).status()));
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, before.state_bytes_reserved);
  EXPECT_TRUE(absl::IsNotFound(engine->sessions().Export(session.id, "eve").status()));
}

}  // namespace
}  // namespace ovq::engine::test
