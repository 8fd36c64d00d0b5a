// Sessions on disk: everything that callers got an answer for survives the engine, to the byte,
// however it stopped.
#include "tests/server/engine/durable.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string_view>

#include "absl/time/clock.h"
#include "server/disk/session_folder.h"
#include "server/engine/common/session_image.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/forms.h"
#include "tests/server/engine/stepping_clock.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DurableHow : public Durable, public testing::WithParamInterface<bool> {};

TEST_P(DurableHow, GoesOnWhereItWas) {
  Start();
  const std::string id = Open(700, GetParam());
  engine().Run(Turn(id, SomeTokens(30, 4), 90));
  const SessionInfo before = Info(id);
  EXPECT_TRUE(before.durable);
  const std::vector<std::byte> state = State(engine(), id);
  for (const bool killed : {true, false}) {
    killed ? Kill() : Start();
    EXPECT_THAT(damaged_, IsEmpty());
    EXPECT_THAT(left_, IsEmpty());
    const SessionInfo found = Info(id);
    EXPECT_TRUE(found.hibernated);
    EXPECT_EQ(found.position, before.position);
    EXPECT_EQ(found.last_token, before.last_token);
    EXPECT_EQ(found.slot_cap, 40);
    EXPECT_EQ(found.keeps_tokens, GetParam());
    EXPECT_EQ(found.prompt_tokens_total, before.prompt_tokens_total);
    EXPECT_EQ(found.generated_tokens_total, before.generated_tokens_total);
    EXPECT_EQ(found.turns.size(), before.turns.size());
    EXPECT_EQ(engine().SettledStats().state_bytes_reserved, 0u);
    EXPECT_EQ(State(engine(), id), state);
    EXPECT_FALSE(Info(id).hibernated);
    EXPECT_THAT(told_, ElementsAre("wake"));
  }
  TestEngine other;  // undisturbed, in memory
  SessionOptions same;
  same.prompt = SomeTokens(700, 3);
  same.slot_cap = 40;
  same.keep_tokens = GetParam();
  const std::string twin = other.NewSession(same).id;
  other.Run(Turn(twin, SomeTokens(30, 4), 90));
  EXPECT_EQ(engine().Run(Turn(id, SomeTokens(9, 5), 20)).of[0].tokens,
            other.Run(Turn(twin, SomeTokens(9, 5), 20)).of[0].tokens);
  EXPECT_EQ(State(engine(), id), State(other, twin));
}

INSTANTIATE_TEST_SUITE_P(KeepsTokens, DurableHow, testing::Bool());

// Its time to live counts from its creation.
TEST_F(Durable, AnEmptySessionIsThereAgain) {
  Start();
  const SessionInfo made = engine().NewSession();
  Start();
  const SessionInfo found = Info(made.id);
  EXPECT_EQ(found.position, 0);
  EXPECT_FALSE(found.last_token);
  EXPECT_GT(found.expires, absl::Now());
  EXPECT_LT(absl::AbsDuration(found.expires - made.expires), absl::Seconds(1));
  EXPECT_TRUE(engine().Run(Turn(made.id, {1, 2}, 3)).status.ok());
}

TEST_F(Durable, ASwapInReplaysLessThanTheSpacing) {
  Start();
  const std::string id = Open(5000);
  // A session goes on while its snapshot is written to a slow disk.
  const auto expect_snapshots = [this](int count) {
    for (int i = 0; i < 60'000 && snapshots_ < count; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(snapshots_, count);
  };
  int expected = 1;
  expect_snapshots(expected);
  int64_t unread = 0;
  for (int turn = 0; turn < 12; ++turn) {
    engine().Run(Turn(id, SomeTokens(100, 4), 7));
    unread += 107;
    if (unread > 512) {
      expect_snapshots(++expected);
      unread = 0;
    }
  }
  Kill();
  engine().Run(Turn(id, SomeTokens(1, 5), 1));
  EXPECT_LT(replayed_, 512 + 107);
  EXPECT_GT(replayed_, 0);
}

TEST_F(Durable, WhatWasDeletedStaysAway) {
  Start();
  const std::string id = Open(1000), other = Open(5);
  EXPECT_TRUE(engine()->sessions().Delete(id, "").ok());
  ExpectNoFiles(id);
  Kill();
  EXPECT_TRUE(absl::IsNotFound(engine()->sessions().Get(id, "").status()));
  EXPECT_TRUE(engine()->sessions().Delete(other, "").ok());  // while its state is on disk alone
  ExpectNoFiles(other);
}

TEST_F(Durable, ForksAndWaysBackAreKept) {
  Start();
  const std::string id = Open(1200);
  engine().Run(Turn(id, SomeTokens(10, 4), 3));
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> forks;
  engine()->sessions().Fork({.session_id = id, .count = 3}, forks.callback());
  const std::vector<SessionInfo> copies = *forks.Wait();
  Receiver<absl::StatusOr<RewindResult>> rewound;
  engine()->sessions().Rewind({.session_id = copies[1].id, .position = 600}, nullptr,
                              rewound.callback());
  ASSERT_TRUE(rewound.Wait().ok());
  engine().Run(Turn(copies[1].id, SomeTokens(20, 6), 5));
  const std::vector<std::byte> first = State(engine(), copies[0].id),
                               second = State(engine(), copies[1].id);
  Kill();
  EXPECT_EQ(State(engine(), copies[0].id), first);
  EXPECT_EQ(State(engine(), id), first);
  EXPECT_EQ(Info(copies[1].id).position, 625);
  EXPECT_EQ(State(engine(), copies[1].id), second);
}

// A fork changes nothing of the session, but its time to live counts from it.
TEST_F(Durable, ASessionThatIsOnlyForkedLivesOn) {
  const auto ms = std::make_shared<std::atomic<int64_t>>(0);
  EngineOptions options;
  options.clock = StandingClock(ms);
  Start(options);
  SessionOptions made;
  made.prompt = SomeTokens(10, 3);
  made.ttl = absl::Minutes(10);
  const std::string id = engine().NewSession(made).id;
  for (const int restart : {1, 2}) {
    *ms += 500'000;
    Receiver<absl::StatusOr<std::vector<SessionInfo>>> forks;
    engine()->sessions().Fork({.session_id = id}, forks.callback());
    const absl::StatusOr<std::vector<SessionInfo>> copies = forks.Wait();
    ASSERT_TRUE(copies.ok()) << copies.status();
    const absl::Time expires = Info(id).expires;
    Start(options);
    EXPECT_EQ(Info(id).expires, expires) << restart;
    EXPECT_EQ(Info(id).position, 10);
  }
}

TEST_F(Durable, AFileJoinedWithADeltaIsKept) {
  EngineOptions trusts;
  trusts.trust_session_files = true;
  Start(trusts);
  const std::string id = Open(700);
  const SessionImage file = *engine()->sessions().Export(id, "");
  engine().Run(Turn(id, SomeTokens(90, 4), 30));
  Start(trusts);  // the delta is of a session on disk
  const absl::StatusOr<SessionImage> delta =
      engine()->sessions().Export(id, "", MakeSessionBase(*file.tokens));
  ASSERT_TRUE(delta.ok()) << delta.status();
  const SessionImage joined = Joined(file, *delta);
  ASSERT_GT(joined.unread, 90);
  Receiver<absl::StatusOr<SessionInfo>> receiver;
  engine()->sessions().Import(joined, {}, receiver.callback());
  const absl::StatusOr<SessionInfo> made = receiver.Wait();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->durable);
  const std::vector<std::byte> state = State(engine(), id);
  EXPECT_EQ(State(engine(), made->id), state);
  Kill();
  EXPECT_EQ(State(engine(), made->id), state);
  EXPECT_EQ(replayed_, 0);  // its snapshot's state has consumed them
  EXPECT_EQ(engine()->sessions().Export(made->id, "")->tokens, joined.tokens);
}

TEST_F(Durable, ADamagedFileHurtsItsSessionAlone) {
  Start();
  const std::string bad_journal = Open(10), bad_state = Open(1000), good = Open(1000),
                    short_state = Open(1000);
  Stop();
  const auto flip = [](const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
  };
  flip(SessionFile(bad_journal, ".journal"), 40);
  flip(SessionFile(bad_state, ".session"), 9000);
  std::filesystem::resize_file(SessionFile(short_state, ".session"), 1000);
  Start();
  ASSERT_EQ(damaged_.size(), 2u);
  EXPECT_THAT(damaged_, testing::UnorderedElementsAre(HasSubstr("wrong checksum"),
                                                      HasSubstr("1000 bytes, expected")));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/damaged/" + bad_journal + ".journal"));
  const Answers answers = engine().Run(Turn(bad_state, {1}, 1));
  EXPECT_TRUE(absl::IsDataLoss(answers.status)) << answers.status;
  EXPECT_THAT(std::string(answers.status.message()), HasSubstr("its files"));
  EXPECT_TRUE(absl::IsNotFound(engine()->sessions().Get(bad_state, "").status()));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/damaged/" + bad_state + ".journal"));
  EXPECT_TRUE(engine().Run(Turn(good, {1}, 1)).status.ok());
}

// A snapshot with valid checksums and a state that no session can have.
TEST_F(Durable, AMaliciousStateIsQuarantined) {
  Start();
  const std::string id = Open(700), good = Open(700);
  SessionImage image = *engine()->sessions().Export(id, "");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(image.state.data() + engine().model().layout().layer(1).fixed_offset, &nan,
              sizeof nan);
  Stop();
  const std::string snapshot = SessionFile(id, ".session");
  const EncodedSession file = EncodeSession(std::move(image));
  std::ofstream(snapshot, std::ios::binary) << file.head << file.state << file.tail;
  Start();
  EXPECT_THAT(damaged_, IsEmpty());
  const absl::Status refused = engine().Run(Turn(id, {1}, 1)).status;
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("its files: session file: state of layer 1, "
                        "fake_window: window[0] is nan"));
  EXPECT_TRUE(absl::IsNotFound(engine()->sessions().Get(id, "").status()));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/damaged/" + id + ".journal"));
  EXPECT_TRUE(engine().Run(Turn(good, {1}, 1)).status.ok());
}

TEST_F(Durable, ATornTurnIsOneThatNobodyWasToldOf) {
  Start();
  const std::string id = Open(10);
  engine().Run(Turn(id, {1, 2}, 3));
  const std::string journal = SessionFile(id, ".journal");
  const auto whole = std::filesystem::file_size(journal);
  engine().Run(Turn(id, {1, 2}, 3));
  Stop();
  const auto end = std::filesystem::file_size(journal);
  std::mt19937 random(1);
  for (int i = 0; i < 8; ++i) {
    std::filesystem::resize_file(journal,
                                 std::uniform_int_distribution<uintmax_t>(whole, end - 1)(random));
    Start();
    EXPECT_EQ(Info(id).position, 15);
    EXPECT_EQ(std::filesystem::file_size(journal), whole);
    EXPECT_TRUE(engine().Run(Turn(id, {1, 2}, 3)).status.ok());
    Stop();
    EXPECT_EQ(std::filesystem::file_size(journal), end);
  }
}

TEST_F(Durable, AFullDiskIsSaidAndHurtsNobody) {
  Start();
  const std::string id = Open(10), other = Open(10);
  const std::string journal = SessionFile(id, ".journal");
  std::filesystem::rename(journal, path_ + "/kept");
  std::filesystem::create_symlink("/dev/full", journal);
  const Answers answers = engine().Run(Turn(id, {1}, 3));
  EXPECT_TRUE(absl::IsDataLoss(answers.status)) << answers.status;
  EXPECT_THAT(std::string(answers.status.message()),
              HasSubstr("a restart would find 10 of its 14 tokens"));
  EXPECT_FALSE(answers.of[0].finished);
  EXPECT_FALSE(Info(id).durable);
  EXPECT_EQ(Info(id).position, 14);
  EXPECT_TRUE(engine().Run(Turn(other, {1}, 3)).status.ok());
  std::filesystem::remove(journal);
  std::filesystem::rename(path_ + "/kept", journal);
  EXPECT_TRUE(engine().Run(Turn(id, {1}, 3)).status.ok());  // writes earlier unsaved changes, too
  EXPECT_TRUE(Info(id).durable);
  const std::vector<std::byte> state = State(engine(), id);
  Kill();
  EXPECT_EQ(Info(id).position, 18);
  EXPECT_EQ(State(engine(), id), state);
}

TEST_F(Durable, ASessionThatCannotBeWrittenIsNotMade) {
  Start();
  const std::string id = Open(10);
  const size_t reserved = engine().SettledStats().state_bytes_reserved;
  std::filesystem::rename(path_, path_ + "-away");
  SessionOptions options;
  options.prompt = SomeTokens(10, 3);
  Receiver<absl::StatusOr<SessionInfo>> made;
  engine()->sessions().Create(options, made.callback());
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> forks;
  engine()->sessions().Fork({.session_id = id, .count = 2}, forks.callback());
  for (const absl::Status& status : {made.Wait().status(), forks.Wait().status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("so that there is no such session"));
  }
  EXPECT_EQ(engine().SettledStats().state_bytes_reserved, reserved);
  std::filesystem::rename(path_ + "-away", path_);
  EXPECT_TRUE(engine().Run(Turn(id, {1}, 3)).status.ok());
}

TEST_F(Durable, ASnapshotThatFailedIsWrittenWithTheNextTurn) {
  Start();
  const std::string id = Open(10);
  const std::string part = path_ + "/" + id + ".journal.part";
  std::filesystem::create_directory(part);  // so that the journal cannot be written anew
  EXPECT_TRUE(engine().Run(Turn(id, SomeTokens(600, 4), 3)).status.ok());
  for (int i = 0; i < 60'000 && snapshots_ < 1; ++i) absl::SleepFor(absl::Milliseconds(1));
  std::filesystem::remove(part);
  engine().AwaitBoundary();  // the engine knows that it failed
  EXPECT_TRUE(engine().Run(Turn(id, {1}, 1)).status.ok());
  for (int i = 0; i < 60'000 && snapshots_ < 2; ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(snapshots_, 2);
  Kill();
  EXPECT_TRUE(engine().Run(Turn(id, {1}, 1)).status.ok());
  EXPECT_LT(replayed_, 600);
}

// Each call without a prompt stores the form that it goes on with.
TEST_F(Durable, AJournalIsBoundedWhateverItsEntriesHold) {
  Start();
  const std::string id = Open(10);
  GenerateRequest first = Turn(id, {1}, 1);
  first.constraint = Compiled(AnswerForm::Choice(
      {AnswerForm::Literal(std::string(40'000, 'a')), AnswerForm::Literal("a!")}));
  EXPECT_TRUE(engine().Run(first).status.ok());
  for (int call = 0; call < 60; ++call) EXPECT_TRUE(engine().Run(Turn(id, {}, 1)).status.ok());
  const std::string journal = SessionFile(id, ".journal");
  constexpr uintmax_t kMost = 3 << 19;  // a MiB, and what came while a snapshot was written
  for (int i = 0; i < 60'000 && std::filesystem::file_size(journal) > kMost; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_LT(std::filesystem::file_size(journal), kMost);
  EXPECT_GE(snapshots_, 1);
}

// Each server that finds the session adds less than a MiB to its journal.
TEST_F(Durable, AJournalIsBoundedAcrossRestarts) {
  Start();
  const std::string id = Open(10);
  GenerateRequest first = Turn(id, {1}, 1);
  first.constraint = Compiled(AnswerForm::Choice(
      {AnswerForm::Literal(std::string(40'000, 'a')), AnswerForm::Literal("a!")}));
  EXPECT_TRUE(engine().Run(first).status.ok());
  for (int restart = 0; restart < 5; ++restart) {
    Start();
    for (int call = 0; call < 12; ++call) EXPECT_TRUE(engine().Run(Turn(id, {}, 1)).status.ok());
  }
  Start();
  EXPECT_GE(snapshots_, 1);
  EXPECT_LT(std::filesystem::file_size(SessionFile(id, ".journal")), uintmax_t{3} << 19);
  EXPECT_TRUE(engine().Run(Turn(id, {}, 1)).status.ok());
}

// A state that is read straight into its address range: 33,000 slots of 64 bytes.
class DurableLarge : public Durable {
 protected:
  void StartLarge() {
    EngineOptions options;
    options.max_prompt_tokens = 40'000;
    Start(options, {.full_attention = true, .max_unbounded_tokens = 40'000});
  }
  std::string OpenLarge() {
    const std::string id = Open(36'000);
    EXPECT_GT(Info(id).state_bytes, size_t{2} << 20);
    return id;
  }
};

TEST_F(DurableLarge, GoesOnWhereItWas) {
  StartLarge();
  const std::string id = OpenLarge();
  engine().Run(Turn(id, SomeTokens(20, 4), 5));  // not in the snapshot
  const std::vector<std::byte> state = State(engine(), id);
  StartLarge();
  EXPECT_EQ(State(engine(), id), state);
  EXPECT_THAT(told_, ElementsAre("wake"));
  EXPECT_EQ(replayed_, 25);
  // A copy was made on the way.
  EXPECT_EQ(engine().SettledStats().checkpoint_bytes,
            engine().model().layout().live_bytes_at(35'999, 40));
  Receiver<absl::StatusOr<RewindResult>> rewound;
  engine()->sessions().Rewind({.session_id = id, .position = 36'010}, nullptr, rewound.callback());
  EXPECT_EQ(rewound.Wait()->replay_tokens, 10);
  engine().Run(Turn(id, SomeTokens(20, 4), 5));
  EXPECT_TRUE(engine()->sessions().Delete(id, "").ok());
  EXPECT_EQ(engine().SettledStats().checkpoint_bytes, 0u);
}

TEST_F(DurableLarge, DamageGivesItsPlaceBack) {
  StartLarge();
  const std::string id = OpenLarge();
  Stop();
  std::fstream file(SessionFile(id, ".session"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1'500'000);
  file.write("damage", 6);
  file.close();
  StartLarge();
  const absl::Status refused = engine().Run(Turn(id, {1}, 1)).status;
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its files: session file: section STAT"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/damaged/" + id + ".journal"));
  const EngineStats stats = engine().SettledStats();
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
  EXPECT_EQ(stats.checkpoint_bytes, 0u);
  EXPECT_EQ(stats.sessions_hibernated + stats.sessions_idle + stats.sessions_active, 0);
}

// Deletion and swap-in end in either order.
TEST_F(DurableLarge, OneThatIsDeletedOnItsWayIsGone) {
  for (int delay = 0; delay < 6; ++delay) {
    StartLarge();
    const std::string id = OpenLarge();
    StartLarge();
    const std::shared_ptr<TokenStream> turn = engine().Start(Turn(id, {1}, 1));
    absl::SleepFor(absl::Microseconds(200 * delay));
    EXPECT_TRUE(engine()->sessions().Delete(id, "").ok());
    ReadAll(*turn);
    EXPECT_EQ(engine().SettledStats().state_bytes_reserved, 0u);
    EXPECT_EQ(engine().SettledStats().sessions_hibernated, 0);
    ExpectNoFiles(id);
  }
}

TEST_F(Durable, SessionsTakeTurnsInTheMemory) {
  Start();
  const size_t each = engine().model().layout().bytes_cap(40);
  EngineOptions options;
  options.overcommit = true;
  options.state_memory_bytes = 3 * each;
  options.max_sessions = 40;
  Start(options);
  std::vector<std::string> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(Open(600 + i));
  EXPECT_EQ(engine().SettledStats().sessions_hibernated, 9);
  EXPECT_EQ(engine().SettledStats().sessions_idle, 3);
  TestEngine calm;
  for (int i = 0; i < 12; ++i) {
    SessionOptions same;
    same.prompt = SomeTokens(600 + i, 3);
    same.slot_cap = 40;
    const std::string twin = calm.NewSession(same).id;
    const std::string& id = ids[static_cast<size_t>(i)];
    EXPECT_EQ(engine().Run(Turn(id, SomeTokens(9, 5), 20)).of[0].tokens,
              calm.Run(Turn(twin, SomeTokens(9, 5), 20)).of[0].tokens);
    EXPECT_EQ(State(engine(), id), State(calm, twin));
  }
  // A one-shot request needs memory as well.
  EXPECT_TRUE(engine().Run(SampleRequest(SomeTokens(500, 1), 5)).status.ok());
  for (const std::string& id : ids) EXPECT_TRUE(engine()->sessions().Delete(id, "").ok());
  const EngineStats stats = engine().SettledStats();
  EXPECT_EQ(stats.sessions_hibernated + stats.sessions_idle + stats.sessions_active, 0);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
}

TEST_F(Durable, AServerSaysWhyASessionIsNotItsOwn) {
  SessionOptions exact, large;
  exact.variant = "exact";
  large.slot_cap = 300;
  Start({}, {.exact_too = true});
  const std::string id = Open(10), of_exact = engine().NewSession(exact).id;
  const std::string of_large = engine().NewSession(large).id;
  // Starts a server with this model, which leaves the session alone and says so twice.
  const auto why = [&](const FakeModelOptions& model, const std::string& session) {
    Start({}, model);
    const absl::Status asked = engine()->sessions().Get(session, "").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(asked)) << asked;
    EXPECT_THAT(left_, testing::Contains(std::string(asked.message())));
    return std::string(asked.message());
  };
  EXPECT_EQ(why({}, of_exact), "session " + of_exact +
                                   ": of the memory 'exact', which this server does not have "
                                   "(--memory)");
  EXPECT_EQ(why({.row_words = 32}, id),
            "session " + id + ": of states that are laid out otherwise (--state-dtype)");
  EXPECT_EQ(why({.max_slot_cap = 299}, of_large),
            "session " + of_large +
                ": of 300 max_centroids, of which this server takes at most 299 (--max-centroids)");
  Start({}, {.exact_too = true});
  EXPECT_THAT(left_, IsEmpty());
}

// No snapshot says how long it is; its tokens would not fit in a state of the server.
TEST_F(Durable, ASessionThatIsTooLongForTheServerStaysAsItIs) {
  SessionOptions exact;
  exact.variant = "exact";
  exact.prompt = SomeTokens(20, 3);  // the last one is pending
  Start({}, {.exact_too = true});
  const std::string id = engine().NewSession(exact).id;
  for (const int64_t most : {18, 19}) {
    Start({}, {.exact_too = true, .max_unbounded_tokens = most});
    Receiver<absl::StatusOr<std::vector<SessionInfo>>> forks;
    engine()->sessions().Fork({.session_id = id}, forks.callback());
    const absl::Status status = forks.Wait().status();
    if (most == 19) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(
        std::string(status.message()),
        "session " + id + ": of 19 tokens, of which this server takes at most 18 (--max-context)");
    EXPECT_THAT(left_, ElementsAre(std::string(status.message())));
  }
}

// A server finds its own sessions, and those of another one that died.
TEST_F(Durable, MoreSessionsThanAServerMayHaveGoOn) {
  Start();
  const std::vector<std::string> ids = {Open(10), Open(600), Open(20)};
  EngineOptions options;
  options.max_sessions = 2;
  Start(options);
  for (const std::string& id : ids) {
    const absl::Status status = engine().Run(Turn(id, {1, 2}, 3)).status;
    EXPECT_TRUE(status.ok()) << status;
  }
  Receiver<absl::StatusOr<SessionInfo>> made;
  engine()->sessions().Create({}, made.callback());
  const absl::Status refused = made.Wait().status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("sessions: all 2 of the server"));
}

TEST_F(Durable, FilesThatStayAreTold) {
  Start();
  const std::string id = Open(10);
  const std::string journal = SessionFile(id, ".journal");
  std::filesystem::remove(journal);
  std::filesystem::create_directory(journal);
  const absl::Status status = engine()->sessions().Delete(id, "");
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::StartsWith("session " + id + ": is gone, but its files may not be"));
  EXPECT_FALSE(engine()->sessions().Get(id, "").ok());
  EXPECT_EQ(engine().SettledStats().state_bytes_reserved, 0u);
}

}  // namespace
}  // namespace ovq::engine::test
