// A store in an object store when that, the network or a server fails. The rest is in
// tests/server/store/conformance_test.cc.
#include "server/s3/s3_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "tests/server/store/redis_process.h"
#include "tests/server/store/s3_process.h"

namespace ovq::s3 {
namespace {

using store::test::S3Process;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Proxy = store::test::RedisProxy;  // it passes on whatever comes

constexpr char kStored[] = "blue.0123456789abcdef0123456789abcdef";

store::JournalHead StoredHead(const std::string& id) {
  store::JournalHead head;
  head.id = id;
  head.created_unix_ms = 1'700'000'000'000;
  return head;
}

store::JournalEntry StoredToken(int64_t at) {
  return {.begin = at, .tokens = {static_cast<int32_t>(at)}};
}

template <class Result, class Call>
Result ResultOf(const Call& call) {
  auto result = std::make_shared<std::promise<Result>>();
  call([result](auto value) { result->set_value(std::move(value)); });
  return result->get_future().get();
}

template <class Holds>
bool Eventually(const Holds& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

class S3StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(store::test::kPython, X_OK) != 0) GTEST_SKIP() << "no " << store::test::kPython;
    server_ = std::make_unique<S3Process>(std::vector<std::string>{"--page", "2"});
  }

  S3StoreOptions Options(int port = 0) const {
    return {.address = server_->address(port),
            .credentials = S3Process::credentials(),
            .lease = absl::Seconds(1),
            .reply_timeout = absl::Milliseconds(300),
            .patience = absl::Seconds(3),
            .ownership_timeout = absl::Seconds(4),
            .listen_interval = absl::Milliseconds(20)};
  }
  std::unique_ptr<S3Store> Open(const S3StoreOptions& options) {
    auto store = S3Store::Open(options, [this](const store::StoreReport& report) {
      std::lock_guard lock(mutex_);
      if (absl::IsAborted(report.status) || absl::IsUnknown(report.status)) ++fenced_;
    });
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return nullptr;
    const absl::StatusOr<store::RecoveredSessions> found = (*store)->Recover();
    EXPECT_TRUE(found.ok()) << found.status();
    if (found.ok()) found_ = *found;
    return *std::move(store);
  }
  static absl::Status Create(S3Store& store, const std::string& id = kStored) {
    return ResultOf<absl::Status>([&](auto done) { store.Create(StoredHead(id), {}, {}, done); });
  }
  static absl::Status Append(S3Store& store, int64_t at, const std::string& id = kStored) {
    return ResultOf<absl::Status>([&](auto done) { store.Append(id, StoredToken(at), done); });
  }
  static absl::Status Remove(S3Store& store) {
    return ResultOf<absl::Status>([&](auto done) { store.Remove(kStored, done); });
  }
  static absl::Status Snapshot(S3Store& store, uint64_t version, const std::string& id = kStored) {
    store::JournalHead head = StoredHead(id);
    head.version = version;
    head.mark.length = static_cast<int64_t>(version);
    return ResultOf<absl::Status>([&](auto done) {
      store.Snapshot(
          head, [](const store::SessionStore::WriteParts& write) { return write({"state"}); },
          done);
    });
  }
  static absl::StatusOr<store::FoundSession> Acquire(S3Store& store) {
    return ResultOf<absl::StatusOr<store::FoundSession>>(
        [&](auto done) { store.Acquire(kStored, done); });
  }
  static absl::StatusOr<store::StoredSession> Read(S3Store& store) {
    return ResultOf<absl::StatusOr<store::StoredSession>>(
        [&](auto done) { store.Read(kStored, done); });
  }
  SessionObject Object() {
    return ReadSessionObject(server_->client(), kStored, kNever).value().object;
  }
  // The lease of this server ends at once.
  void RemoveLeases() {
    for (const std::string& key : server_->Keys("server/")) {
      ASSERT_TRUE(server_->client().Delete(key, kNever).ok());
    }
  }

  std::unique_ptr<S3Process> server_;
  store::RecoveredSessions found_;
  std::mutex mutex_;
  int fenced_ = 0;
};

// The network of a server fails for longer than its lease. Another server goes on, and what the
// first one writes later is refused.
TEST_F(S3StoreTest, AServerThatWasNotHeardOfWritesNothing) {
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
TEST_F(S3StoreTest, WhatMayHaveBeenStoredIsNotSaidToBeUndone) {
  Proxy proxy(server_->port());
  S3StoreOptions options = Options(proxy.address().port);
  options.lease = absl::Seconds(30);
  options.patience = absl::Seconds(20);
  const auto first = Open(options), second = Open(Options());
  ASSERT_TRUE(Create(*first).ok());
  server_->Control("lose=1&word=session/");
  proxy.LoseAnswers("GET /sessions/some/prefix/session/", 6);  // for more than a second
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

TEST_F(S3StoreTest, ALostSessionIsNoticedWithoutAWrite) {
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

TEST_F(S3StoreTest, AServerThatWasCutOffKnowsThatItIsNotSure) {
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
TEST_F(S3StoreTest, AServerThatWakesStoresItsSessionsAgain) {
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

TEST_F(S3StoreTest, AChangeOfAnEarlierTermDoesNotHappen) {
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

// A request whose connection broke is carried out seconds later.
TEST_F(S3StoreTest, ALateWriteChangesNothing) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  server_->Control("late=1&count=1&word=session/");
  EXPECT_TRUE(Append(*store, 0).ok());
  EXPECT_TRUE(Append(*store, 1).ok());
  absl::SleepFor(absl::Milliseconds(1500));
  EXPECT_EQ(Read(*store)->journal.version(), 2u);
  EXPECT_TRUE(Append(*store, 2).ok());
  EXPECT_EQ(Read(*store)->journal.version(), 3u);
}

// A proxy's 404 is no object store's word that a session is gone.
TEST_F(S3StoreTest, A404WithoutACodeIsNotTakenForAMissingSession) {
  const auto store = Open(Options());
  std::atomic<int> lost = 0;
  store->SetListener({.lost = [&](const std::string&) { ++lost; }});
  ASSERT_TRUE(Create(*store).ok());
  server_->Control("status=404&bare=1&count=-1");
  EXPECT_TRUE(absl::IsUnavailable(Append(*store, 0)));
  EXPECT_TRUE(Eventually([&] { return !store->sure_of_ownership(); }));
  EXPECT_TRUE(absl::IsUnavailable(
      ResultOf<absl::Status>([&](auto done) { store->ConfirmOwnership(done); })));
  server_->Control("status=404&count=0");
  EXPECT_TRUE(Eventually([&] { return store->sure_of_ownership(); }));
  EXPECT_EQ(lost, 0);
  EXPECT_TRUE(Snapshot(*store, 1).ok());
  store->SetListener({});
}

// The owner's lease ends for whoever asks at the moment when the owner wakes.
TEST_F(S3StoreTest, AServerWhoseLeaseWasRemovedLooksForItsSessions) {
  S3StoreOptions options = Options();
  options.lease = absl::Seconds(2);
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

TEST_F(S3StoreTest, SessionsOfAServerThatEndedAreFoundWithoutBeingAskedFor) {
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
  std::vector<std::string> leases;
  for (const std::string& key : server_->Keys("server/")) {
    leases.push_back(server_->client().GetObject(key, kNever).value().bytes);
  }
  EXPECT_THAT(leases, SizeIs(2));
  EXPECT_THAT(leases, Contains("ended"));  // the dead server's
  proxy.Freeze(false);
}

// An append stays small, however long a journal becomes.
TEST_F(S3StoreTest, ALongJournalIsInParts) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  constexpr int kEntries = 12, kTokens = 50'000;  // 200 kB an entry
  for (int i = 0; i < kEntries; ++i) {
    store::JournalEntry entry = {.begin = int64_t{kTokens} * i, .tokens = {}};
    entry.tokens.assign(kTokens, i);
    const absl::Status status =
        ResultOf<absl::Status>([&](auto done) { store->Append(kStored, entry, done); });
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_LE(Object().tail.size(), size_t{256} << 10);
  }
  EXPECT_GE(Object().parts.size(), 4u);
  store::StoredSession stored = Read(*store).value();
  ASSERT_THAT(stored.journal.entries, SizeIs(kEntries));
  for (int i = 0; i < kEntries; ++i) EXPECT_EQ(stored.journal.entries[i].tokens.back(), i);
  ASSERT_TRUE(Snapshot(*store, kEntries).ok());
  EXPECT_THAT(Object().parts, IsEmpty());
  store->Release(kStored);
  const auto next = Open(Options());
  ASSERT_THAT(found_.sessions, SizeIs(1));
  EXPECT_EQ(found_.sessions[0].version, uint64_t{kEntries});
}

TEST_F(S3StoreTest, AMissingPartOfAJournalIsDamage) {
  auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  store::JournalEntry entry = {.begin = 0};
  entry.tokens.assign(100'000, 1);
  ASSERT_TRUE(ResultOf<absl::Status>([&](auto done) { store->Append(kStored, entry, done); }).ok());
  store.reset();
  ASSERT_TRUE(server_->client().Delete(DataKey(kStored, Object().parts.at(0).name), kNever).ok());
  store = Open(Options());
  EXPECT_THAT(found_.sessions, IsEmpty());
  ASSERT_THAT(found_.damaged, SizeIs(1));
  EXPECT_THAT(found_.damaged[0], HasSubstr("of its journal is missing"));
  EXPECT_THAT(server_->Keys(""), Contains(absl::StrCat("damaged/", kStored)));
  EXPECT_THAT(server_->Keys(""), Not(Contains(absl::StrCat("session/", kStored))));
}

TEST_F(S3StoreTest, RequestsToComeAgainAreFollowed) {
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  for (const char* status : {"503", "500", "409"}) {
    server_->Control(absl::StrCat("status=", status, "&count=3&word=session/"));
    EXPECT_TRUE(Append(*store, 0).ok()) << status;
  }
  server_->Control("status=503&count=-1&word=session/");
  const absl::Time begin = absl::Now();
  const absl::Status status = Append(*store, 0);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("503 SlowDown"));
  EXPECT_THAT(status.message(), HasSubstr("s3://sessions/some/prefix at http://127.0.0.1:"));
  EXPECT_GT(absl::Now() - begin, absl::Seconds(1));
  server_->Control("status=503&count=0");
  EXPECT_TRUE(Snapshot(*store, 4).ok());
  EXPECT_EQ(Read(*store)->journal.version(), 4u);
}

// Whoever was told that a session could not be created finds none later.
TEST_F(S3StoreTest, ACreationThatFailedIsNotFound) {
  S3StoreOptions options = Options();
  options.patience = absl::Milliseconds(300);
  auto store = Open(options);
  server_->Control("status=500&count=-1&method=PUT&word=session/");
  const absl::Status status = Create(*store);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  server_->Control("status=500&count=0");
  EXPECT_TRUE(Eventually([&] { return server_->Keys("session/").size() == 1; }));
  EXPECT_TRUE(absl::IsNotFound(Acquire(*store).status()));
  // The request that was given up comes late.
  const SessionObject late = {.owner = "whoever", .epoch = 1, .nonce = "late"};
  EXPECT_TRUE(absl::IsFailedPrecondition(
      server_->client()
          .PutObject(SessionKey(kStored), EncodeSessionObject(late), Precondition::Absent(), {})
          .status()));
  store.reset();
  store = Open(options);
  EXPECT_THAT(found_.sessions, IsEmpty());
  EXPECT_THAT(found_.damaged, IsEmpty());
  EXPECT_TRUE(Create(*store).ok());  // its name is free
}

TEST_F(S3StoreTest, ARemovalThatFailedIsMadeLater) {
  S3StoreOptions options = Options();
  options.patience = absl::Milliseconds(300);
  options.sweep_interval = absl::Milliseconds(200);
  const auto store = Open(options);
  std::atomic<int> found = 0;
  store->SetListener({.found = [&](const store::FoundSession&) { ++found; }});
  ASSERT_TRUE(Create(*store).ok());
  server_->Kill();
  EXPECT_FALSE(Remove(*store).ok());
  server_->Start();
  EXPECT_TRUE(Eventually([&] { return server_->Keys("session/").empty(); }));
  EXPECT_EQ(found, 0);
  EXPECT_EQ(store->owned(), 0u);
  store->SetListener({});
}

TEST_F(S3StoreTest, ReplacedObjectsAreRemovedWhenNobodyReadsThem) {
  S3StoreOptions options = Options();
  options.replaced_life = absl::Milliseconds(500);
  const auto store = Open(options);
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Append(*store, 0).ok());
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  const std::vector<std::string> before = server_->Keys("data/");
  ASSERT_THAT(before, SizeIs(1));
  store::StoredSession old = Read(*store).value();
  ASSERT_TRUE(Append(*store, 1).ok());
  ASSERT_TRUE(Snapshot(*store, 2).ok());
  EXPECT_TRUE(Eventually([&] { return server_->Keys("data/").size() == 1; }));
  EXPECT_THAT(server_->Keys("data/"), Not(Contains(before[0])));
  std::string bytes(5, ' ');
  const absl::Status status = old.snapshot->Read(bytes);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("another snapshot has replaced it"));
  ASSERT_TRUE(Remove(*store).ok());
  EXPECT_TRUE(Eventually([&] { return server_->Keys("data/").empty(); }));
  EXPECT_THAT(server_->Keys("session/"), IsEmpty());
}

TEST_F(S3StoreTest, OrphansAreRemovedWhenTheyAreOld) {
  const auto other = Open(Options());
  ASSERT_TRUE(Create(*other, "theirs").ok());
  ASSERT_TRUE(Append(*other, 0, "theirs").ok());
  ASSERT_TRUE(Snapshot(*other, 1, "theirs").ok());
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Append(*store, 0).ok());
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  const std::vector<std::string> named = server_->Keys("data/");
  S3Client& client = server_->client();
  const std::vector<std::string> orphans = {DataKey(kStored, "snapshot-x.1"),
                                            DataKey("nobody", "text-x"), "ask/a/b/c", "bell/x",
                                            "probe/x"};
  for (const std::string& key : orphans) ASSERT_TRUE(client.PutObject(key, "x", {}, kNever).ok());
  const std::string removed = EncodeSessionObject({.nonce = UnguessableHex(), .removed = true});
  ASSERT_TRUE(client.PutObject(SessionKey("removed"), removed, {}, kNever).ok());
  const std::string theirs = DataKey("theirs", "snapshot-x.1"), damaged = DataKey("bad", "text-x");
  for (const std::string& key : {theirs, damaged, std::string("damaged/bad")}) {
    ASSERT_TRUE(client.PutObject(key, "x", {}, kNever).ok());
  }
  OwnedSessions owned(client, "tester", 1 << 20);
  owned.Add(kStored, {{.epoch = 1}, ""});
  Garbage garbage(client, owned, Options());
  ASSERT_TRUE(garbage.SweepOrphans(absl::Seconds(20)).ok());
  for (const std::string& key : orphans) EXPECT_THAT(server_->Keys(""), Contains(key));
  server_->Control("jump=90000");
  ASSERT_TRUE(garbage.SweepOrphans(absl::Seconds(20)).ok());
  const std::vector<std::string> left = server_->Keys("");
  for (const std::string& key : orphans) EXPECT_THAT(left, Not(Contains(key)));
  EXPECT_THAT(left, Contains(theirs));  // their owner removes it
  EXPECT_THAT(left, Contains(damaged));
  EXPECT_THAT(server_->Keys("session/"), SizeIs(2));  // without the removed one
  for (const std::string& key : named) EXPECT_THAT(left, Contains(key));
}

// Only the owner's word is a refusal; that the request is gone is none.
TEST_F(S3StoreTest, ARequestThatIsGoneIsMadeAgain) {
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
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
  EXPECT_TRUE(Eventually([&] { return server_->Keys("ask/").empty(); }));
  first->SetListener({});
  second->SetListener({});
}

// A session of a later release is no damaged one.
TEST_F(S3StoreTest, AnObjectOfAnotherVersionStaysAsItIs) {
  auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  store.reset();
  std::string bytes = EncodeSessionObject(Object());
  bytes[8] = 'z';  // after the magic text
  S3Client& client = server_->client();
  ASSERT_TRUE(client.PutObject(SessionKey(kStored), bytes, {}, kNever).ok());
  store = Open(Options());
  ASSERT_THAT(found_.damaged, SizeIs(1));
  const absl::Status status = Acquire(*store).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("this server reads version"));
  EXPECT_EQ(client.GetObject(SessionKey(kStored), kNever)->bytes, bytes);
  EXPECT_EQ(store->owned(), 0u);
}

TEST_F(S3StoreTest, AServerThatOwnsASessionWithoutKnowingReleasesIt) {
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

TEST_F(S3StoreTest, RefusesObjectStoresThatItCannotUse) {
  const auto refused = [](const S3StoreOptions& options) {
    const absl::Status status = S3Store::Open(options).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  S3StoreOptions options = Options();
  options.patience = absl::Milliseconds(100);
  options.address.bucket = "another";
  EXPECT_THAT(refused(options), HasSubstr("404 NoSuchBucket: there is no bucket another"));
  options.address.bucket = "sessions";
  options.address.region = "eu-west-1";
  EXPECT_THAT(refused(options), HasSubstr("the region 'eu-west-1' is wrong"));
  options.address.region = "us-east-1";
  options.credentials.secret = "wrong";
  EXPECT_THAT(refused(options), HasSubstr("SignatureDoesNotMatch"));
  options.credentials.key_id = "nobody";
  EXPECT_THAT(refused(options), HasSubstr("InvalidAccessKeyId"));
  options = Options(store::test::FreePort());
  options.patience = absl::Milliseconds(100);
  EXPECT_THAT(refused(options), HasSubstr("Connection refused"));
  server_->Control("status=403&count=-1&method=GET");
  EXPECT_THAT(refused(Options()), HasSubstr("s3:ListBucket"));
  server_->Control("status=403&count=0&careless=1");
  EXPECT_THAT(refused(Options()), HasSubstr("an object store with conditional writes"));
  server_->Control("careless=0");
  EXPECT_THAT(server_->Keys("session/"), IsEmpty());
}

TEST_F(S3StoreTest, ListsThatAreNoneAreErrors) {
  S3Client& client = server_->client();
  for (const char* key : {"x/1", "x/2", "x/3"}) {
    ASSERT_TRUE(client.PutObject(key, "x", {}, kNever).ok());
  }
  EXPECT_THAT(server_->Keys("x/"), SizeIs(3));  // in two pages
  for (const auto& [fault, words] : {std::pair("tokens", "got no token"),
                                     {"etags", "a list without ETags"},
                                     {"keys", "a list with "}}) {
    server_->Control(absl::StrCat("list=", fault));
    const absl::Status status = client.ListAll("x/", kNever).status();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(words));
    EXPECT_THAT(status.message(), HasSubstr("s3://sessions/some/prefix at http://"));
  }
}

TEST_F(S3StoreTest, ACacheOfAnySizeDoesNotChangeWhatIsStored) {
  for (const size_t bytes : {size_t{0}, size_t{1000}, size_t{1} << 20}) {
    OwnedSessions owned(server_->client(), "tester", bytes);
    for (int i = 0; i < 5; ++i) {
      const std::string id = absl::StrCat("cached", bytes, "-", i);
      SessionObject object = {.owner = "tester", .epoch = 1, .nonce = "first"};
      const std::string etag =
          server_->client()
              .PutObject(SessionKey(id), EncodeSessionObject(object), {}, kNever)
              .value();
      owned.Add(id, {object, etag});
    }
    for (int k = 0; k < 20; ++k) {
      const std::string id = absl::StrCat("cached", bytes, "-", k * 3 % 5);
      const auto add = [k](SessionObject& object) {
        object.tail += static_cast<char>('a' + k);
        return absl::OkStatus();
      };
      ASSERT_TRUE(owned.Commit(id, owned.Term(id), add, absl::OkStatus(), kNever).ok());
    }
    std::string all;
    for (int i = 0; i < 5; ++i) {
      const std::string id = absl::StrCat("cached", bytes, "-", i);
      all += ReadSessionObject(server_->client(), id, kNever).value().object.tail;
    }
    EXPECT_EQ(all, "afkpchmrejotbglqdins");
  }
}

}  // namespace
}  // namespace ovq::s3
