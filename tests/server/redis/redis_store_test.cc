// A store in Redis when Redis or the network fails. The rest is in
// tests/server/store/conformance_test.cc.
#include "server/redis/redis_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/redis/redis_store_fixture.h"
#include "tests/server/store/free_port.h"

namespace ovq::redis::test {
namespace {

using store::test::FreePort;
using store::test::RedisProxy;
using testing::HasSubstr;

using RedisStoreTest = RedisStoreFixture;

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
  texts[0].get_future().wait();
  const absl::Time stored = entry.get_future().get(), second = texts[1].get_future().get();
  // The first text is given up 2.5 s before the second one; the next attempt comes within a second.
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
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
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
  EXPECT_LT(absl::Now() - begin, options.lease / 2);
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
    options.reply_timeout = absl::Seconds(20);
    options.patience = absl::Milliseconds(100);  // with a server that is not there
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
}  // namespace ovq::redis::test
