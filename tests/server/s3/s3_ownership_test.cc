// Which server owns a session in an object store when the network or a server fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/s3/s3_store.h"
#include "tests/server/s3/s3_store_fixture.h"
#include "tests/server/store/redis_process.h"

namespace ovq::s3::test {
namespace {

using testing::Contains;
using testing::SizeIs;
using Proxy = store::test::RedisProxy;  // it passes on whatever comes

using S3OwnershipTest = S3StoreFixture;

// The network of a server fails for longer than its lease. Another server goes on, and what the
// first one writes later is refused.
TEST_F(S3OwnershipTest, AServerThatWasNotHeardOfWritesNothing) {
  Proxy proxy(server_->port());
  const auto first = Open(Options(proxy.address().port)), second = Open(Options());
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string& id) { lost += id == kStored ? 1 : 0; }});
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Create(*first, "other").ok());
  ASSERT_TRUE(Append(*first, 0).ok());
  proxy.Freeze(true);
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->version, 1u);
  ASSERT_TRUE(Append(*second, 1).ok());
  std::promise<absl::Status> late;
  first->Append(kStored, StoredToken(1),
                [&](const absl::Status& status) { late.set_value(status); });
  proxy.Freeze(false);
  // Where an attempt got no answer, the first server cannot know.
  const absl::Status refused = late.get_future().get();
  EXPECT_TRUE(absl::IsAborted(refused) || absl::IsUnknown(refused)) << refused;
  EXPECT_TRUE(Eventually([&] { return lost == 1; }));
  EXPECT_EQ(fenced_, 1);
  EXPECT_TRUE(absl::IsAborted(Snapshot(*first, 2)));
  EXPECT_EQ(Read(*second)->journal.version(), 2u);
  EXPECT_EQ(second->owned(), 1u);
  // A session that nobody else acquired is still the first server's.
  EXPECT_TRUE(Append(*first, 0, "other").ok());
  EXPECT_EQ(first->owned(), 1u);
  first->SetListener({});
}

// The entry is stored, its acknowledgement lost, and the session another server's with the entry.
TEST_F(S3OwnershipTest, WhatMayHaveBeenStoredIsNotSaidToBeUndone) {
  Proxy proxy(server_->port());
  S3StoreOptions options = Options(proxy.address().port);
  options.lease = absl::Seconds(30);
  options.patience = absl::Seconds(20);
  const auto first = Open(options), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  server_->Control("lose=1&word=session/");
  proxy.LoseAnswers("GET /sessions/some/prefix/session/", 9);  // for some seconds
  std::promise<absl::Status> late;
  first->Append(kStored, StoredToken(0),
                [&](const absl::Status& status) { late.set_value(status); });
  EXPECT_TRUE(Eventually([&] { return Read(*second)->journal.version() == 1; }));
  RemoveLeases();
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->version, 1u);
  const absl::Status status = late.get_future().get();
  EXPECT_TRUE(absl::IsUnknown(status)) << status;
}

TEST_F(S3OwnershipTest, ALostSessionIsNoticedWithoutAWrite) {
  Proxy proxy(server_->port());
  const auto first = Open(Options(proxy.address().port)), second = Open(Options());
  std::promise<std::string> lost;
  first->SetListener({.lost = [&](const std::string& id) { lost.set_value(id); }});
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Create(*first, "other").ok());
  proxy.Freeze(true);
  ASSERT_TRUE(Acquire(*second).ok());
  proxy.Freeze(false);
  EXPECT_EQ(lost.get_future().get(), kStored);
  EXPECT_EQ(first->owned(), 1u);
  EXPECT_EQ(fenced_, 0);
  first->SetListener({});
}

TEST_F(S3OwnershipTest, AServerThatWasCutOffKnowsThatItIsNotSure) {
  Proxy proxy(server_->port());
  const auto first = Open(Options(proxy.address().port)), second = Open(Options());
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string&) { ++lost; }});
  const auto confirm = [&] {
    return ResultOf<absl::Status>([&](auto done) { first->ConfirmOwnership(done); });
  };
  ASSERT_TRUE(Create(*first).ok());
  EXPECT_TRUE(first->sure_of_ownership());
  EXPECT_TRUE(confirm().ok());
  proxy.Freeze(true);
  EXPECT_TRUE(Eventually([&] { return !first->sure_of_ownership(); }));
  const absl::Status unknown = confirm();
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  ASSERT_TRUE(Acquire(*second).ok());
  EXPECT_EQ(lost, 0);
  proxy.Freeze(false);
  EXPECT_TRUE(Eventually([&] { return confirm().ok(); }));
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(first->sure_of_ownership());
  first->SetListener({});
}

// A server that is about to acquire a session has seen its owner's lease end, and finds that the
// owner has stored the session again.
TEST_F(S3OwnershipTest, AServerThatWakesStoresItsSessionsAgain) {
  Proxy proxy(server_->port());
  const auto store = Open(Options(proxy.address().port));
  constexpr int kSessions = 20;
  const auto id = [](int i) { return absl::StrCat("woken", i); };
  for (int i = 0; i < kSessions; ++i) ASSERT_TRUE(Create(*store, id(i)).ok());
  std::vector<std::string> before;
  for (int i = 0; i < kSessions; ++i) {
    before.push_back(ReadSessionObject(server_->client(), id(i), kNever).value().etag);
  }
  proxy.Freeze(true);
  EXPECT_TRUE(Eventually([&] { return !store->sure_of_ownership(); }));
  proxy.Freeze(false);
  EXPECT_TRUE(Eventually([&] { return store->sure_of_ownership(); }));
  for (int i = 0; i < kSessions; ++i) {
    const StoredObject now = ReadSessionObject(server_->client(), id(i), kNever).value();
    EXPECT_NE(now.etag, before[i]);
    EXPECT_EQ(now.object.epoch, 1u);
    EXPECT_TRUE(Append(*store, 0, id(i)).ok());
  }
}

TEST_F(S3OwnershipTest, AChangeOfAnEarlierTermDoesNotHappen) {
  S3Client& client = server_->client();
  OwnedSessions owned(client, "tester", 1 << 20);
  SessionObject object = {.owner = "tester", .epoch = 1, .nonce = "first", .tail = "t"};
  const auto store = [&] {
    const std::string bytes = EncodeSessionObject(object);
    return client.PutObject(SessionKey(kStored), bytes, {}, kNever).value();
  };
  owned.Add(kStored, {object, store()});
  const uint64_t term = owned.Term(kStored);
  std::vector<std::string> lost;
  owned.SetListener([&](const std::string& id) { lost.push_back(id); });
  owned.Lose(kStored, term);
  EXPECT_THAT(lost, SizeIs(1));
  ++object.epoch;
  owned.Add(kStored, {object, store()});
  const auto change = [](SessionObject& changed) {
    changed.tail += "late";
    return absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsAborted(owned.Commit(kStored, term, change, absl::OkStatus(), kNever)));
  EXPECT_EQ(owned.Remove(kStored, term).epoch, 0u);
  owned.Lose(kStored, term);
  EXPECT_THAT(lost, SizeIs(1));
  EXPECT_TRUE(owned.Contains(kStored));
  EXPECT_EQ(Object().tail, "t");
  EXPECT_TRUE(owned.Commit(kStored, owned.Term(kStored), change, absl::OkStatus(), kNever).ok());
  EXPECT_EQ(Object().tail, "tlate");
}

// It cannot know whether another server has taken it for dead.
TEST_F(S3OwnershipTest, AServerThatMayNotStoreItsSessionsAgainIsNotSureOfThem) {
  Proxy proxy(server_->port());
  const auto store = Open(Options(proxy.address().port));
  ASSERT_TRUE(Create(*store).ok());
  proxy.Freeze(true);
  EXPECT_TRUE(Eventually([&] { return !store->sure_of_ownership(); }));
  server_->Control("status=403&count=-1&method=PUT&word=session/");
  proxy.Freeze(false);
  EXPECT_TRUE(Eventually([&] {
    const auto confirmed =
        ResultOf<absl::Status>([&](auto done) { store->ConfirmOwnership(done); });
    return absl::IsPermissionDenied(confirmed);
  }));
  EXPECT_FALSE(store->sure_of_ownership());
  server_->Control("status=403&count=0");
  EXPECT_TRUE(Eventually([&] { return store->sure_of_ownership(); }));
  EXPECT_TRUE(Append(*store, 0).ok());
}

// The answer says how the lease was when it was asked for, not how it is when it comes.
TEST_F(S3OwnershipTest, ALateAnswerDoesNotMakeALeaseEnd) {
  S3Client& client = server_->client();
  ASSERT_TRUE(client.PutObject("server/other", "1 3000", {}, kNever).ok());
  SeenLeases seen(client);
  EXPECT_TRUE(seen.IsAlive("other", kNever).value());
  server_->Control("slow=3.5&count=1&word=server/other");
  EXPECT_TRUE(seen.IsAlive("other", kNever).value());
  EXPECT_FALSE(seen.IsAlive("other", kNever).value());
}

TEST_F(S3OwnershipTest, ALostAnswerToARenewalIsNoLapse) {
  S3Client& client = server_->client();
  Lease lease(client, "me", absl::Seconds(20));
  EXPECT_FALSE(lease.Renew(kNever).value());  // it was not there
  server_->Control("lose=1&word=server/me");
  EXPECT_TRUE(lease.Renew(kNever).value());
  EXPECT_TRUE(lease.Renew(kNever).value());
  ASSERT_TRUE(client.PutObject("server/me", "ended", {}, kNever).ok());
  EXPECT_FALSE(lease.Renew(kNever).value());
  EXPECT_TRUE(lease.Renew(kNever).value());
}

// A renewal is tried once; a later one finds what became of it.
TEST_F(S3OwnershipTest, RenewalsThatGotNoAnswerAreNoLapse) {
  S3Client& client = server_->client();
  Lease lease(client, "me", absl::Seconds(60));
  EXPECT_FALSE(lease.Renew(kNever).value());  // it was not there
  server_->Control("lose=1&word=server/me");
  EXPECT_TRUE(absl::IsUnavailable(lease.Renew({}).status()));
  EXPECT_TRUE(lease.Renew({}).value());
  EXPECT_EQ(client.GetObject("server/me", kNever)->bytes, "3 60000");
  // The answer to what follows the lost one is lost, too, whether it was carried out or not.
  server_->Control("lose=2&word=server/me");
  EXPECT_TRUE(absl::IsUnavailable(lease.Renew({}).status()));
  EXPECT_TRUE(absl::IsUnavailable(lease.Renew({}).status()));
  server_->Control("status=503&count=1&method=PUT&word=server/me");
  EXPECT_TRUE(absl::IsUnavailable(lease.Renew({}).status()));
  EXPECT_TRUE(lease.Renew({}).value());
  EXPECT_TRUE(lease.Renew({}).value());
  // Others have seen it end.
  server_->Control("lose=1&word=server/me");
  EXPECT_TRUE(absl::IsUnavailable(lease.Renew({}).status()));
  ASSERT_TRUE(client.PutObject("server/me", "ended", {}, kNever).ok());
  EXPECT_FALSE(lease.Renew({}).value());
  ASSERT_TRUE(client.Delete("server/me", kNever).ok());
  server_->Control("lose=1&word=server/me");
  EXPECT_TRUE(absl::IsUnavailable(lease.Renew({}).status()));
  EXPECT_FALSE(lease.Renew({}).value());
  EXPECT_TRUE(lease.Renew({}).value());
  // An earlier renewal that comes late is not this one.
  ASSERT_TRUE(client.PutObject("server/me", "3 60000", {}, kNever).ok());
  EXPECT_FALSE(lease.Renew({}).value());
}

// The owner's lease ends for whoever asks at the moment when the owner wakes.
TEST_F(S3OwnershipTest, AServerWhoseLeaseWasRemovedLooksForItsSessions) {
  S3StoreOptions options = Options();
  options.lease *= 2;
  const auto first = Open(options);
  std::atomic<int> lost = 0;
  first->SetListener({.lost = [&](const std::string&) { ++lost; }});
  ASSERT_TRUE(Create(*first).ok());
  ASSERT_TRUE(Create(*first, "other").ok());
  SessionObject object = Object();
  object.owner = "another server";
  ++object.epoch;
  S3Client& client = server_->client();
  ASSERT_TRUE(client.PutObject(SessionKey(kStored), EncodeSessionObject(object), {}, kNever).ok());
  RemoveLeases();
  EXPECT_TRUE(Eventually([&] { return lost == 1; }));
  EXPECT_EQ(first->owned(), 1u);
  EXPECT_THAT(server_->Keys("server/"), SizeIs(1));
  first->SetListener({});
}

TEST_F(S3OwnershipTest, SessionsOfAServerThatEndedAreFoundWithoutBeingAskedFor) {
  S3StoreOptions options = Options();
  options.sweep_interval = absl::Milliseconds(200);
  Proxy proxy(server_->port());
  const auto dying = Open(Options(proxy.address().port));
  ASSERT_TRUE(Create(*dying).ok());
  const auto store = Open(options);
  EXPECT_EQ(found_.elsewhere, 1u);
  std::promise<std::string> found;
  store->SetListener(
      {.found = [&](const store::FoundSession& session) { found.set_value(session.head.id); }});
  proxy.Freeze(true);
  EXPECT_EQ(found.get_future().get(), kStored);
  store->SetListener({});
  EXPECT_TRUE(Append(*store, 0).ok());
  EXPECT_THAT(server_->Keys("server/"), SizeIs(2));
  const auto one_ended = [&] {
    return std::ranges::any_of(server_->Keys("server/"), [&](const std::string& key) {
      return server_->client().GetObject(key, kNever).value().bytes == "ended";
    });
  };
  EXPECT_TRUE(Eventually(one_ended));  // the dead server's
  proxy.Freeze(false);
}

// A call comes for a session that the server finds by itself at this moment. Its answer, that there
// is nothing to be acquired, comes once the listener knows of the session.
TEST_F(S3OwnershipTest, ACallForASessionThatWasJustFoundIsNotRefused) {
  S3StoreOptions options = Options();
  options.sweep_interval = absl::Milliseconds(200);
  Proxy proxy(server_->port());
  const auto dying = Open(Options(proxy.address().port));
  ASSERT_TRUE(Create(*dying).ok());
  const auto store = Open(options);
  std::atomic<bool> told = false;
  std::promise<absl::Status> answer;
  store->SetListener({.found = [&](const store::FoundSession& session) {
    store->Acquire(session.head.id, [&](const absl::StatusOr<store::FoundSession>& found) {
      EXPECT_TRUE(told);
      answer.set_value(found.status());
    });
    absl::SleepFor(absl::Milliseconds(300));
    told = true;
  }});
  proxy.Freeze(true);
  const absl::Status status = answer.get_future().get();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(store->owned(), 1u);
  EXPECT_TRUE(Append(*store, 0).ok());
  store->SetListener({});
  // Once it was elsewhere, it is a session like others.
  store->Release(kStored);
  EXPECT_TRUE(Acquire(*store).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Acquire(*store).status()));
  proxy.Freeze(false);
}

// Only the owner's word is a refusal; that the request is gone is none.
TEST_F(S3OwnershipTest, ARequestThatIsGoneIsMadeAgain) {
  const auto first = Open(Options()), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  std::atomic<int> asked = 0;
  first->SetListener({.asked = [&](const std::string& id) {
    if (++asked > 1) return first->Release(id);
    for (const std::string& key : server_->Keys("ask/")) {
      EXPECT_TRUE(server_->client().Delete(key, kNever).ok());
    }
  }});
  const absl::StatusOr<store::FoundSession> found = Acquire(*second);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(Eventually([&] { return server_->Keys("ask/").empty(); }));
  second->SetListener({.asked = [&](const std::string& id) { second->Decline(id); }});
  const absl::Time begin = absl::Now();
  const absl::Status declined = Acquire(*first).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(declined)) << declined;
  EXPECT_LT(absl::Now() - begin, kSlowness * absl::Seconds(3));
  EXPECT_TRUE(Eventually([&] { return server_->Keys("ask/").empty(); }));
  first->SetListener({});
  second->SetListener({});
}

TEST_F(S3OwnershipTest, AServerThatOwnsASessionWithoutKnowingReleasesIt) {
  const auto first = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  const std::vector<std::string> before = server_->Keys("server/");
  const auto second = Open(Options());
  first->Release(kStored);
  ASSERT_TRUE(Eventually([&] { return Object().owner.empty(); }));
  SessionObject object = Object();
  for (const std::string& key : server_->Keys("server/")) {
    if (key != before[0]) object.owner = key.substr(key.find('/') + 1);
  }
  ++object.epoch;  // as the second server's acquisition would have stored it
  ASSERT_TRUE(server_->client()
                  .PutObject(SessionKey(kStored), EncodeSessionObject(object), {}, kNever)
                  .ok());
  const absl::StatusOr<store::FoundSession> found = Acquire(*first);
  EXPECT_TRUE(found.ok()) << found.status();
}

}  // namespace
}  // namespace ovq::s3::test
