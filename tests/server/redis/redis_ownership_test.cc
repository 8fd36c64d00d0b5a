// Which server owns a session in Redis when the network or a server fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/redis/redis_store.h"
#include "tests/server/redis/redis_store_fixture.h"

namespace ovq::redis::test {
namespace {

using store::JournalEntry;
using store::test::RedisProxy;
using testing::HasSubstr;

using RedisOwnershipTest = RedisStoreFixture;

// The first renewal after a lease was over has no answer: the next one tells all the same.
TEST_F(RedisOwnershipTest, ALeaseThatWasOverIsNoticedWhateverAnswersAreLost) {
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
  for (int i = 0; i < 1500 && lost == 0; ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(first->owned(), 0u);
}

// A write that was asked for before the session went to another server and came back.
TEST_F(RedisOwnershipTest, AWriteFromBeforeATakeOverIsRefused) {
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

TEST_F(RedisOwnershipTest, ASessionThatOnlyRedisTakesForAServersIsGivenUp) {
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

// A server that slept hears of a request for a session that the other one has acquired meanwhile.
TEST_F(RedisOwnershipTest, ARequestThatWaitedForASleeperIsNotAnswered) {
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
  for (int i = 0; i < 1500 && lost == 0; ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(asked, 0);
}

// A request comes while the server gives up a session that it does not own: nobody is told.
TEST_F(RedisOwnershipTest, ARequestForASessionThatIsGivenUpIsNotAnswered) {
  const auto first = Open(Options()), second = Open(Options());
  ASSERT_TRUE(Create(*second).ok());
  std::atomic<int> asked = 0;
  first->SetListener({.asked = [&](const std::string&) { ++asked; }});
  std::vector<std::string> push = {"RPUSH", ""};
  push.insert(push.end(), 500, kSession);
  const absl::Time end = absl::Now() + absl::Seconds(3);
  while (absl::Now() < end) {
    redis_->Run({"SET", absl::StrCat("ovq:asked:", kSession), "1"});
    for (const Reply& lease : redis_->Run({"KEYS", "ovq:lease:*"}).items) {
      push[1] = absl::StrCat("ovq:asks:", lease.text.substr(std::string("ovq:lease:").size()));
      redis_->Run(push);
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(asked, 0);
}

// Requests of an earlier time, when the server owned the session, are still in its list when it
// acquires the session again.
TEST_F(RedisOwnershipTest, RequestsFromBeforeAnAcquisitionAreNotAnswered) {
  const auto first = Open(Options());
  const std::string lease = redis_->Run({"KEYS", "ovq:lease:*"}).items[0].text;
  const auto second = Open(Options());
  std::atomic<int> asked = 0;
  first->SetListener({.asked = [&](const std::string&) { ++asked; }});
  ASSERT_TRUE(Create(*second).ok());
  second->Release(kSession);
  std::vector<std::string> push = {
      "RPUSH", absl::StrCat("ovq:asks:", lease.substr(std::string("ovq:lease:").size()))};
  push.insert(push.end(), 20'000, kSession);  // takes longer to read than to acquire the session
  redis_->Run({"SET", absl::StrCat("ovq:asked:", kSession), "1"});
  redis_->Run(push);
  const absl::StatusOr<store::FoundSession> found = Acquire(*first);
  ASSERT_TRUE(found.ok()) << found.status();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_EQ(asked, 0);
  redis_->Run({"SET", absl::StrCat("ovq:asked:", kSession), "1"});
  for (int i = 0; i < 1000 && asked == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(asked, 0);
  first->SetListener({});
}

// The answer that makes a server the owner comes when another one has the session again.
TEST_F(RedisOwnershipTest, AnAcquisitionThatIsAnsweredTooLateIsNone) {
  RedisProxy proxy(redis_->address().port);
  const auto second = Open(Options());
  ASSERT_TRUE(Create(*second).ok());
  const std::string lease = redis_->Run({"KEYS", "ovq:lease:*"}).items[0].text;
  RedisStoreOptions slow = Options();
  slow.address = proxy.address();
  slow.reply_timeout = absl::Seconds(20);
  const auto first = Open(slow);
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string&) { ++lost; }});
  second->Release(kSession);
  proxy.HoldAnswer(kSession);
  std::promise<absl::StatusOr<store::FoundSession>> late;
  first->Acquire(kSession, [&](auto found) { late.set_value(std::move(found)); });
  for (int i = 0; i < 1000 && !proxy.holds(); ++i) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_TRUE(proxy.holds());
  for (const Reply& one : redis_->Run({"KEYS", "ovq:lease:*"}).items) {
    if (one.text != lease) redis_->Run({"DEL", one.text});
  }
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->still_owned());
  absl::SleepFor(absl::Seconds(1));  // the first server's lease is there again
  proxy.LetGo();
  const absl::StatusOr<store::FoundSession> none = late.get_future().get();
  EXPECT_TRUE(absl::IsUnavailable(none.status())) << none.status();
  EXPECT_EQ(first->owned(), 0u);
  EXPECT_TRUE(Append(*second, 0).ok());
}

// The network of a server fails for longer than its lease. Another server goes on, and what the
// first one writes later is refused.
TEST_F(RedisOwnershipTest, AServerThatWasNotHeardOfWritesNothing) {
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
TEST_F(RedisOwnershipTest, WhatMayHaveBeenStoredIsNotSaidToBeUndone) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions cut_off = Options();
  cut_off.address = proxy.address();
  cut_off.patience = absl::Seconds(60);
  const auto first = Open(cut_off), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  proxy.LoseAnswers("the entry", 1'000'000);
  std::promise<absl::Status> late;
  JournalEntry entry = TokenAt(0);
  entry.unfinished = "the entry";
  first->Append(kSession, std::move(entry),
                [&](const absl::Status& status) { late.set_value(status); });
  const std::string hash = absl::StrCat("ovq:session:", kSession);
  while (redis_->Run({"HGET", hash, "seq"}).text != "1") absl::SleepFor(absl::Milliseconds(1));
  absl::StatusOr<store::FoundSession> found = absl::UnknownError("not asked for");
  for (int i = 0; i < 10 && !found.ok(); ++i) {  // the first server may renew its lease in between
    for (const Reply& lease : redis_->Run({"KEYS", "ovq:lease:*"}).items) {
      redis_->Run({"DEL", lease.text});
    }
    found = Acquire(*second);
  }
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->version, 1u);
  proxy.LoseNoMore();
  const absl::Status status = late.get_future().get();
  EXPECT_TRUE(absl::IsUnknown(status)) << status;
}

// The lease of a server is over when it creates sessions, and comes back meanwhile.
TEST_F(RedisOwnershipTest, SessionsCreatedWhileTheLeaseReturnsStay) {
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

TEST_F(RedisOwnershipTest, AnOwnerThatRedisHasNoRoomForIsNotDead) {
  const auto first = Open(Options()), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  redis_->Run({"CONFIG", "SET", "maxmemory", "1"});
  const absl::Status status = Acquire(*second).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("does not answer"));
  redis_->Run({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(Append(*first, 0).ok());
}

// Only the owner's word is a refusal; that the request has ended is none.
TEST_F(RedisOwnershipTest, ARequestThatRedisForgotIsMadeAgain) {
  RedisStoreOptions patient = Options();
  patient.ownership_timeout = absl::Seconds(60);
  const auto first = Open(patient), second = Open(patient);
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
  EXPECT_LT(absl::Now() - begin, patient.ownership_timeout / 2);
  first->SetListener({});
  second->SetListener({});
}

TEST_F(RedisOwnershipTest, ALostSessionIsNoticedWithoutAWrite) {
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
TEST_F(RedisOwnershipTest, ADeadServersLeaseEndsByTheClockOfWhoeverAsks) {
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

// Calls come for sessions that the server finds by itself at this moment. The answers, that there
// is nothing to be acquired, come once the listener knows of the sessions.
TEST_F(RedisOwnershipTest, ACallForASessionThatWasJustFoundIsNotRefused) {
  RedisProxy proxy(redis_->address().port);
  RedisStoreOptions dying = Options(), sweeping = Options();
  dying.address = proxy.address();
  sweeping.sweep_interval = absl::Milliseconds(200);
  const auto first = Open(dying), second = Open(sweeping);
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Create(*first, "other").ok());
  std::atomic<int> told = 0, answers = 0;
  second->SetListener({.found = [&](const store::FoundSession&) {
    if (++told > 1) return;
    for (const char* id : {kSession, "other"}) {
      second->Acquire(id, [&](const absl::StatusOr<store::FoundSession>& answer) {
        EXPECT_TRUE(answer.ok() || absl::IsNotFound(answer.status())) << answer.status();
        ++answers;
      });
    }
  }});
  proxy.Freeze(true);
  for (int i = 0; i < 1000 && answers < 2; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(second->owned(), 2u);
  EXPECT_TRUE(Append(*second, 0).ok());
  EXPECT_TRUE(Append(*second, 0, "other").ok());
  second->SetListener({});
  // Once it was elsewhere, it is a session like others.
  second->Release(kSession);
  EXPECT_TRUE(Acquire(*second).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Acquire(*second).status()));
  proxy.Freeze(false);
}

// A server that died leaves sessions that nobody asks for: another one finds them.
TEST_F(RedisOwnershipTest, SessionsOfDeadServersAreFound) {
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

}  // namespace
}  // namespace ovq::redis::test
