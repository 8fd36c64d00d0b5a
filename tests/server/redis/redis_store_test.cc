// A store in Redis when Redis, the network or a server fails. The rest is in
// tests/server/store/conformance_test.cc.
#include "server/redis/redis_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/store/redis_process.h"

namespace ovq::redis {
namespace {

using store::JournalEntry;
using store::test::FreePort;
using store::test::RedisProcess;
using store::test::RedisProxy;
using testing::HasSubstr;

constexpr char kSession[] = "blue.0123456789abcdef0123456789abcdef";

store::JournalHead HeadNamed(const std::string& id) {
  store::JournalHead head;
  head.id = id;
  head.created_unix_ms = 1'700'000'000'000;
  return head;
}

JournalEntry TokenAt(int64_t at) { return {.begin = at, .tokens = {static_cast<int32_t>(at)}}; }

template <class Result, class Call>
Result Await(const Call& call) {
  auto result = std::make_shared<std::promise<Result>>();
  call([result](auto value) { result->set_value(std::move(value)); });
  return result->get_future().get();
}

class RedisStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(store::test::kRedisServer, X_OK) != 0) {
      GTEST_SKIP() << "no " << store::test::kRedisServer;
    }
    redis_ = std::make_unique<RedisProcess>();
  }

  RedisStoreOptions Options() const {
    return {.address = redis_->address(),
            .lease = absl::Seconds(1),
            .reply_timeout = absl::Milliseconds(300),
            .patience = absl::Seconds(3),
            .ownership_timeout = absl::Seconds(3)};
  }
  std::unique_ptr<RedisStore> Open(const RedisStoreOptions& options) {
    auto store = RedisStore::Open(options, [this](const store::StoreReport& report) {
      std::lock_guard lock(mutex_);
      if (absl::IsAborted(report.status) || absl::IsUnknown(report.status)) ++fenced_;
    });
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return nullptr;
    const absl::StatusOr<store::RecoveredSessions> found = (*store)->Recover();
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(store);
  }
  static absl::Status Create(RedisStore& store, const std::string& id = kSession) {
    return Await<absl::Status>([&](auto done) { store.Create(HeadNamed(id), {}, {}, done); });
  }
  static absl::Status Append(RedisStore& store, int64_t at, const std::string& id = kSession) {
    return Await<absl::Status>([&](auto done) { store.Append(id, TokenAt(at), done); });
  }
  static absl::Status Snapshot(RedisStore& store, uint64_t version) {
    store::JournalHead head = HeadNamed(kSession);
    head.version = version;
    head.mark.length = static_cast<int64_t>(version);
    return Await<absl::Status>([&](auto done) {
      store.Snapshot(
          head, [](const store::SessionStore::WriteParts& write) { return write({"state"}); },
          done);
    });
  }
  static absl::StatusOr<store::FoundSession> Acquire(RedisStore& store) {
    return Await<absl::StatusOr<store::FoundSession>>(
        [&](auto done) { store.Acquire(kSession, done); });
  }
  static uint64_t Version(RedisStore& store) {
    const auto stored =
        Await<absl::StatusOr<store::StoredSession>>([&](auto done) { store.Read(kSession, done); });
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? stored->journal.version() : 0;
  }

  std::unique_ptr<RedisProcess> redis_;
  std::mutex mutex_;
  int fenced_ = 0;
};

// The first renewal after a lease was over has no answer: the next one tells all the same.
TEST_F(RedisStoreTest, ALeaseThatWasOverIsNoticedWhateverAnswersAreLost) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions lossy = Options();
  lossy.address = proxy.address();
  const auto first = Open(lossy), second = Open(Options());
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string&) { ++lost; }});
  ASSERT_TRUE(Create(*first).ok());
  proxy.Freeze(true);
  ASSERT_TRUE(Acquire(*second).ok());
  proxy.LoseAnswers("\r\n1000\r\n", 1);  // the milliseconds of a lease
  proxy.Freeze(false);
  for (int i = 0; i < 200 && lost == 0; ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(first->owned(), 0u);
}

// A write that was asked for before the session went to another server and came back.
TEST_F(RedisStoreTest, AWriteFromBeforeATakeOverIsRefused) {
  const auto first = Open(Options()), second = Open(Options());
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string&) { ++lost; }});
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Append(*first, 0).ok());
  store::JournalHead head = HeadNamed(kSession);
  head.version = head.mark.length = 1;
  std::promise<void> made;
  std::promise<absl::Status> written;
  first->Snapshot(
      head,
      [&](const store::SessionStore::WriteParts& write) {
        made.get_future().wait();
        return write({"old state"});
      },
      [&](absl::Status status) { written.set_value(std::move(status)); });
  redis_->Run({"HDEL", absl::StrCat("ovq:session:", kSession), "owner"});
  EXPECT_TRUE(Acquire(*second).ok());
  EXPECT_TRUE(Append(*second, 1).ok());
  EXPECT_TRUE(absl::IsAborted(Append(*first, 1)));
  EXPECT_EQ(lost, 1);
  second->Release(kSession);
  EXPECT_TRUE(Acquire(*first).ok());
  made.set_value();
  EXPECT_TRUE(absl::IsAborted(written.get_future().get()));
  EXPECT_EQ(Version(*first), 2u);
}

TEST_F(RedisStoreTest, ASessionThatOnlyRedisTakesForAServersIsGivenUp) {
  const auto first = Open(Options());
  const Reply lease = redis_->Run({"KEYS", "ovq:lease:*"}).items[0];
  const auto second = Open(Options());
  ASSERT_TRUE(Create(*second).ok());
  second->Release(kSession);
  redis_->Run({"HSET", absl::StrCat("ovq:session:", kSession), "owner",
               lease.text.substr(std::string("ovq:lease:").size())});
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  EXPECT_TRUE(found.ok()) << found.status();
}

// Redis lost its last second: a text is no reason to take what comes after it.
TEST_F(RedisStoreTest, ATextHidesNoLostEntry) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Append(*store, 0).ok());
  redis_->Run({"HSET", absl::StrCat("ovq:session:", kSession), "seq", "0"});
  EXPECT_FALSE(Await<absl::Status>([&](auto done) {
                 store->PutText(kSession, std::make_shared<const std::string>("text"), done);
               }).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Append(*store, 1)));
  EXPECT_TRUE(Snapshot(*store, 2).ok());
  EXPECT_TRUE(Append(*store, 2).ok());
}

TEST(OwnedSessions, AnEntryFollowsAWriteThatMayBeDoneButNotAnEntryThatMayBe) {
  OwnedSessions owned;
  owned.Add("a", "3");
  const absl::StatusOr<Reply> silence = absl::UnavailableError("no answer");
  const auto end = [&](const WriteNumber& write, const absl::StatusOr<Reply>& reply, bool entry) {
    (void)owned.EndWrite(write, reply, absl::OkStatus(), !reply.ok(), entry);
  };
  const WriteNumber text = owned.NextWrite("a", "3");
  EXPECT_EQ(text.Before(), " 0 ");
  end(text, silence, /*entry=*/false);
  const WriteNumber entry = owned.NextWrite("a", "3");
  EXPECT_EQ(entry.Before(), " 0 1 ");
  end(entry, absl::ResourceExhaustedError("full"), /*entry=*/true);
  EXPECT_EQ(owned.NextWrite("a", "3").Before(), " 0 1 ");
  const WriteNumber late = owned.NextWrite("a", "3");
  EXPECT_EQ(late.Before(), " 3 ");
  end(late, silence, /*entry=*/true);
  EXPECT_EQ(owned.NextWrite("a", "3").Before(), " unknown ");
  EXPECT_FALSE(owned.NextWrite("a", "2").owned());
}

// A server that slept hears of a request for a session that the other one has acquired meanwhile.
TEST_F(RedisStoreTest, ARequestThatWaitedForASleeperIsNotAnswered) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions sleeper = Options();
  sleeper.address = proxy.address();
  sleeper.reply_timeout = absl::Seconds(10);  // no time passes for a process that is stopped
  const auto first = Open(sleeper), second = Open(Options());
  std::atomic<int> asked = 0, lost = 0;
  first->SetListener(
      {.asked = [&](const std::string&) { ++asked; }, .lost = [&](const std::string&) { ++lost; }});
  ASSERT_TRUE(Create(*first).ok());
  proxy.Freeze(true);
  ASSERT_TRUE(Acquire(*second).ok());
  proxy.Freeze(false);
  for (int i = 0; i < 200 && lost == 0; ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(asked, 0);
}

// The network of a server fails for longer than its lease. Another server goes on, and what the
// first one writes later is refused.
TEST_F(RedisStoreTest, AServerThatWasNotHeardOfWritesNothing) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions cut_off = Options();
  cut_off.address = proxy.address();
  const auto first = Open(cut_off), second = Open(Options());
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string& id) { lost += id == kSession ? 1 : 0; }});
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Create(*first, "other").ok());
  ASSERT_TRUE(Append(*first, 0).ok());
  proxy.Freeze(true);
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->version, 1u);
  ASSERT_TRUE(Append(*second, 1).ok());
  std::promise<absl::Status> late;
  first->Append(kSession, TokenAt(1), [&](const absl::Status& status) { late.set_value(status); });
  proxy.Freeze(false);
  // Where an attempt got no answer, the first server cannot know.
  const absl::Status refused = late.get_future().get();
  EXPECT_TRUE(absl::IsAborted(refused) || absl::IsUnknown(refused)) << refused;
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(fenced_, 1);
  EXPECT_TRUE(absl::IsAborted(Snapshot(*first, 2)));
  EXPECT_EQ(Version(*second), 2u);
  EXPECT_EQ(second->owned(), 1u);
  // A session that nobody else acquired is still the first server's.
  EXPECT_TRUE(Append(*first, 0, "other").ok());
  EXPECT_EQ(first->owned(), 1u);
}

// The entry is stored, its acknowledgement lost, and the session another server's with the entry.
TEST_F(RedisStoreTest, WhatMayHaveBeenStoredIsNotSaidToBeUndone) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions cut_off = Options();
  cut_off.address = proxy.address();
  const auto first = Open(cut_off), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  proxy.LoseAnswers("the entry", 20);
  std::promise<absl::Status> late;
  JournalEntry entry = TokenAt(0);
  entry.unfinished = "the entry";
  first->Append(kSession, std::move(entry),
                [&](const absl::Status& status) { late.set_value(status); });
  const std::string hash = absl::StrCat("ovq:session:", kSession);
  while (redis_->Run({"HGET", hash, "seq"}).text != "1") absl::SleepFor(absl::Milliseconds(1));
  for (const Reply& lease : redis_->Run({"KEYS", "ovq:lease:*"}).items) {
    redis_->Run({"DEL", lease.text});
  }
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->version, 1u);
  const absl::Status status = late.get_future().get();
  EXPECT_TRUE(absl::IsUnknown(status)) << status;
}

// The lease of a server is over when it creates sessions, and comes back meanwhile.
TEST_F(RedisStoreTest, SessionsCreatedWhileTheLeaseReturnsStay) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions cut_off = Options();
  cut_off.address = proxy.address();
  const auto store = Open(cut_off);
  std::atomic<int> lost = 0;
  store->SetListener({.lost = [&](const std::string&) { ++lost; }});
  constexpr int kRounds = 3;
  for (int i = 0; i < kRounds; ++i) {
    for (const Reply& lease : redis_->Run({"KEYS", "ovq:lease:*"}).items) {
      redis_->Run({"DEL", lease.text});
    }
    const absl::Status status = Create(*store, absl::StrCat("lease", i));
    EXPECT_TRUE(status.ok()) << status;
    proxy.Freeze(true);
    std::promise<absl::Status> created;
    store->Create(HeadNamed(absl::StrCat("frozen", i)), {}, {},
                  [&](const absl::Status& done) { created.set_value(done); });
    absl::SleepFor(absl::Milliseconds(1200));
    proxy.Freeze(false);
    const absl::Status late = created.get_future().get();
    EXPECT_TRUE(late.ok()) << late;
  }
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(store->owned(), size_t{2 * kRounds});
  for (int i = 0; i < kRounds; ++i) {
    EXPECT_TRUE(Append(*store, 0, absl::StrCat("lease", i)).ok());
    EXPECT_TRUE(Append(*store, 0, absl::StrCat("frozen", i)).ok());
  }
}

// A stored change is acknowledged, although the writer waits for another change.
TEST_F(RedisStoreTest, AcknowledgementsDoNotWaitForLaterChanges) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions options = Options();
  options.address = proxy.address();
  const auto store = Open(options);
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Create(*store, "other").ok());
  proxy.LoseAnswers("needle", 1'000'000);
  std::promise<absl::Time> texts[2], entry;
  const auto put = [&](int i) {
    store->PutText("other", std::make_shared<const std::string>("needle"),
                   [&, i](const absl::Status&) { texts[i].set_value(absl::Now()); });
  };
  put(0);
  absl::SleepFor(absl::Milliseconds(2500));
  store->Append(kSession, TokenAt(0), [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    entry.set_value(absl::Now());
  });
  put(1);
  const absl::Time first = texts[0].get_future().get(), second = texts[1].get_future().get();
  const absl::Time stored = entry.get_future().get();
  EXPECT_LT(stored - first, absl::Milliseconds(1500));  // the next attempt comes within a second
  EXPECT_GT(second - stored, absl::Milliseconds(300));
}

TEST_F(RedisStoreTest, ARemovalThatFailedIsMadeLater) {
  RedisStoreOptions options = Options();
  options.patience = absl::Milliseconds(300);
  options.sweep_interval = absl::Milliseconds(200);
  const auto store = Open(options);
  std::atomic<int> found = 0;
  store->SetListener({.found = [&](const store::FoundSession&) { ++found; }});
  ASSERT_TRUE(Create(*store).ok());
  redis_->Kill();
  EXPECT_FALSE(Await<absl::Status>([&](auto done) { store->Remove(kSession, done); }).ok());
  redis_->Start();
  for (int i = 0; i < 500 && redis_->Run({"SCARD", "ovq:sessions"}).number > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(redis_->Run({"SCARD", "ovq:sessions"}).number, 0);
  EXPECT_EQ(found, 0);
  EXPECT_EQ(store->owned(), 0u);
}

TEST_F(RedisStoreTest, AnOwnerThatRedisHasNoRoomForIsNotDead) {
  const auto first = Open(Options()), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  redis_->Run({"CONFIG", "SET", "maxmemory", "1"});
  const absl::Status status = Acquire(*second).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("does not answer"));
  redis_->Run({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(Append(*first, 0).ok());
}

TEST_F(RedisStoreTest, PartsOfAFailedSnapshotAreRemoved) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  store::JournalHead head = HeadNamed(kSession);
  head.version = 1;
  const absl::Status status = Await<absl::Status>([&](auto done) {
    store->Snapshot(
        head,
        [](const store::SessionStore::WriteParts& write) {
          EXPECT_TRUE(write({"part"}).ok());
          return absl::InternalError("no more");
        },
        done);
  });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(redis_->Run({"KEYS", "ovq:part:*"}).items.size(), 0u);
}

// Only the owner's word is a refusal; that the request has ended is none.
TEST_F(RedisStoreTest, ARequestThatRedisForgotIsMadeAgain) {
  const auto first = Open(Options()), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  std::atomic<int> asked = 0;
  first->SetListener({.asked = [&](const std::string& id) {
    if (++asked > 3) return first->Release(id);
    redis_->Run({"DEL", absl::StrCat("ovq:asked:", id)});
  }});
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  EXPECT_TRUE(found.ok()) << found.status();
  second->SetListener({.asked = [&](const std::string& id) { second->Decline(id); }});
  const absl::Time begin = absl::Now();
  const absl::Status declined = Acquire(*first).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(declined)) << declined;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  first->SetListener({});
  second->SetListener({});
}

// A session of a later release is no damaged one.
TEST_F(RedisStoreTest, AJournalOfAnotherVersionStaysAsItIs) {
  const auto first = Open(Options()), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  const std::string journal = absl::StrCat("ovq:journal:", kSession);
  redis_->Run({"SETRANGE", journal, "8", "z"});  // after the magic text
  const std::string before = redis_->Run({"GET", journal}).text;
  first->Release(kSession);
  const absl::Status status = Acquire(*second).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("this server reads version"));
  EXPECT_EQ(second->owned(), 0u);
  EXPECT_EQ(redis_->Run({"GET", journal}).text, before);
  EXPECT_EQ(redis_->Run({"SCARD", "ovq:sessions"}).number, 1);
  EXPECT_TRUE(redis_->Run({"HGET", absl::StrCat("ovq:session:", kSession), "owner"}).null);
}

TEST_F(RedisStoreTest, ErrorsHaveTheCodeOfTheirWord) {
  RedisConnection connection(redis_->address(), absl::Seconds(5));
  const auto code = [&](const std::string& error) {
    const Command command = {"EVAL", "return redis.error_reply(ARGV[1])", "0", error};
    return connection.RunTogether({command})[0].status().code();
  };
  const std::string script = "ERR Error running script (call to f_0a): @user_script:5: ";
  EXPECT_EQ(code("CONFLICT the last write was 3"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("SURPRISE"), absl::StatusCode::kInternal);
  EXPECT_EQ(code("ERR no such thing"), absl::StatusCode::kInternal);
  EXPECT_EQ(code(script + "-OOM command not allowed"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(script + "@user_script: 5: -READONLY You can't write"),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(script + "attempt to index nil"), absl::StatusCode::kInternal);
  EXPECT_TRUE(connection.connected());
}

TEST_F(RedisStoreTest, ALostSessionIsNoticedWithoutAWrite) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions cut_off = Options();
  cut_off.address = proxy.address();
  const auto first = Open(cut_off), second = Open(Options());
  std::promise<std::string> lost;
  first->SetListener({.lost = [&](const std::string& id) { lost.set_value(id); }});
  ASSERT_TRUE(Create(*first).ok());
  proxy.Freeze(true);
  ASSERT_TRUE(Acquire(*second).ok());
  proxy.Freeze(false);
  EXPECT_EQ(lost.get_future().get(), kSession);
  EXPECT_EQ(first->owned(), 0u);
}

// Redis's clock goes back by a day: the lease of a server that is gone would last as long.
TEST_F(RedisStoreTest, ADeadServersLeaseEndsByTheClockOfWhoeverAsks) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions cut_off = Options();
  cut_off.address = proxy.address();
  const auto first = Open(cut_off), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  proxy.Freeze(true);
  for (const Reply& lease : redis_->Run({"KEYS", "ovq:lease:*"}).items) {
    redis_->Run({"PEXPIRE", lease.text, "86400000"});
  }
  EXPECT_TRUE(Acquire(*second).ok());
  proxy.Freeze(false);
}

// A server that died leaves sessions that nobody asks for: another one finds them.
TEST_F(RedisStoreTest, SessionsOfDeadServersAreFound) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions dying = Options(), sweeping = Options();
  dying.address = proxy.address();
  sweeping.sweep_interval = absl::Milliseconds(200);
  const auto first = Open(dying), second = Open(sweeping);
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Append(*first, 0).ok());
  ASSERT_TRUE(Create(*second, "mine").ok());
  std::promise<store::FoundSession> found;
  second->SetListener(
      {.found = [&](store::FoundSession session) { found.set_value(std::move(session)); }});
  absl::SleepFor(absl::Seconds(1));  // the owner lives: nobody else gets it
  EXPECT_EQ(first->owned(), 1u);
  EXPECT_EQ(second->owned(), 1u);
  proxy.Freeze(true);
  const store::FoundSession session = found.get_future().get();
  EXPECT_EQ(session.head.id, kSession);
  EXPECT_EQ(session.version, 1u);
  EXPECT_TRUE(Append(*second, 1).ok());
  second->SetListener({});
  proxy.Freeze(false);
}

TEST_F(RedisStoreTest, TurnsWaitForARedisThatRestarts) {
  RedisStoreOptions options = Options();
  options.patience = absl::Seconds(60);  // a loaded machine starts it slowly
  const auto store = Open(options);
  ASSERT_TRUE(Create(*store).ok());
  for (int64_t at = 0; at < 3; ++at) {
    redis_->Kill();
    std::promise<absl::Status> done;
    store->Append(kSession, TokenAt(at),
                  [&](const absl::Status& status) { done.set_value(status); });
    absl::SleepFor(absl::Milliseconds(300));
    redis_->Start();
    const absl::Status status = done.get_future().get();
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(Version(*store), 3u);
  EXPECT_EQ(store->owned(), 1u);
}

TEST_F(RedisStoreTest, ARedisThatIsGoneIsNamedInTime) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  redis_->Kill();
  const absl::Time begin = absl::Now();
  const absl::Status append = Append(*store, 0);
  EXPECT_TRUE(absl::IsUnavailable(append)) << append;
  EXPECT_THAT(append.message(), HasSubstr(store->owned() == 1 ? redis_->address().Text() : "?"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(6));
  EXPECT_TRUE(absl::IsUnavailable(Await<absl::StatusOr<store::FoundSession>>([&](auto done) {
                                    store->Acquire("blue.ffffffffffffffffffffffffffffffff", done);
                                  }).status()));
  redis_->Start();
  // Nobody knows what became of the entry, so that the session needs a snapshot.
  EXPECT_FALSE(Append(*store, 1).ok());
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  EXPECT_TRUE(Append(*store, 1).ok());
  EXPECT_EQ(Version(*store), 2u);
}

TEST_F(RedisStoreTest, ARedisThatHangsIsGivenUp) {
  RedisStoreOptions options = Options();
  options.lease = absl::Seconds(60);
  const auto store = Open(options);
  ASSERT_TRUE(Create(*store).ok());
  redis_->Signal(SIGSTOP);
  const absl::Time begin = absl::Now();
  const absl::Status append = Append(*store, 0);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(6));
  EXPECT_TRUE(absl::IsUnavailable(append)) << append;
  EXPECT_THAT(append.message(), HasSubstr("no answer within"));
  redis_->Signal(SIGCONT);
  // The entry may have been carried out late, several times sent; it counts once.
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  ASSERT_TRUE(Append(*store, 1).ok());
  EXPECT_EQ(Version(*store), 2u);
}

TEST_F(RedisStoreTest, ScriptsThatRedisForgotAreSentAgain) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  for (int64_t at = 0; at < 3; ++at) {
    redis_->Run({"SCRIPT", "FLUSH"});
    EXPECT_TRUE(Append(*store, at).ok());
  }
  EXPECT_EQ(Version(*store), 3u);
}

TEST_F(RedisStoreTest, AFullRedisRefusesAndRecovers) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  redis_->Run({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_TRUE(absl::IsResourceExhausted(Append(*store, 0)));
  EXPECT_TRUE(absl::IsResourceExhausted(Create(*store, "another")));
  absl::SleepFor(absl::Seconds(2));  // the lease is renewed all the same
  const auto removed = Await<absl::Status>([&](auto done) { store->Remove(kSession, done); });
  EXPECT_TRUE(removed.ok()) << removed;
  redis_->Run({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(redis_->Run({"SCARD", "ovq:sessions"}).number, 0);
  EXPECT_TRUE(Create(*store).ok());
  EXPECT_TRUE(Append(*store, 0).ok());
}

TEST_F(RedisStoreTest, ASessionThatRedisLostIsLost) {
  const auto store = Open(Options());
  std::atomic<int> lost = 0;
  store->SetListener({.lost = [&](const std::string&) { ++lost; }});
  ASSERT_TRUE(Create(*store).ok());
  redis_->Run({"FLUSHALL"});
  EXPECT_TRUE(absl::IsAborted(Append(*store, 0)));
  EXPECT_EQ(lost, 1);
}

TEST_F(RedisStoreTest, TurnsWaitForReplicas) {
  RedisStoreOptions options = Options();
  options.replicas = 1;
  options.reply_timeout = absl::Seconds(4);  // half of it is for the replica
  const auto store = Open(options);
  const absl::Status alone = Create(*store);
  EXPECT_TRUE(absl::IsUnavailable(alone)) << alone;
  EXPECT_THAT(alone.message(), HasSubstr("0 replicas have the change, expected 1"));
  EXPECT_EQ(redis_->Run({"SCARD", "ovq:sessions"}).number, 0);  // it was taken back
  RedisProcess replica({"--replicaof", absl::StrCat("127.0.0.1 ", redis_->address().port),
                        "--repl-diskless-sync-delay", "0"});
  absl::Status created;
  for (int i = 0; i < 100; ++i) {
    created = Create(*store);
    if (created.ok()) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  ASSERT_TRUE(created.ok()) << created;
  ASSERT_TRUE(Append(*store, 0).ok());
  const std::string journal = absl::StrCat("ovq:journal:", kSession);
  EXPECT_EQ(replica.Run({"GET", journal}).text, redis_->Run({"GET", journal}).text);
}

TEST_F(RedisStoreTest, OpensOnlyWhatKeepsSessions) {
  const auto open = [&](RedisStoreOptions options) {
    options.patience = absl::Milliseconds(100);
    std::vector<std::string> warnings;
    const absl::Status status = RedisStore::Open(options, {}, &warnings).status();
    return absl::StrCat(std::string(status.message()), warnings.empty() ? "" : warnings[0]);
  };
  EXPECT_EQ(open(Options()), "");
  redis_->Run({"CONFIG", "SET", "appendonly", "no"});
  EXPECT_THAT(open(Options()), HasSubstr("appendonly is off"));
  redis_->Run({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  EXPECT_THAT(open(Options()), HasSubstr("maxmemory-policy is allkeys-lru, expected noeviction"));
  redis_->Run({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
  redis_->Run({"CONFIG", "SET", "requirepass", "sesame"});
  EXPECT_THAT(open(Options()), HasSubstr("NOAUTH"));
  RedisStoreOptions options = Options();
  options.address.password = "wrong";
  EXPECT_THAT(open(options), HasSubstr("WRONGPASS"));
  options.address.password = "sesame";
  EXPECT_THAT(open(options), testing::Not(HasSubstr("PASS")));
  options.address.user = "default";
  EXPECT_THAT(open(options), testing::Not(HasSubstr("PASS")));
  options.address.port = FreePort();
  EXPECT_THAT(open(options), HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace ovq::redis
