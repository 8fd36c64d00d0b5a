// A store in an object store when that or the network fails, and what it removes. The rest is in
// tests/server/store/conformance_test.cc.
#include "server/s3/s3_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "tests/server/s3/s3_store_fixture.h"
#include "tests/server/store/free_port.h"
#include "tests/server/store/redis_process.h"

namespace ovq::s3::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

using S3StoreTest = S3StoreFixture;

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

// The checksum of the object is right: whoever wrote it counted wrongly.
TEST_F(S3StoreTest, ASnapshotOfTooManyPartsIsDamage) {
  auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Append(*store, 0).ok());
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  store.reset();
  SessionObject object = Object();
  object.snapshot_parts = ~0u;
  S3Client& client = server_->client();
  ASSERT_TRUE(client.PutObject(SessionKey(kStored), EncodeSessionObject(object), {}, kNever).ok());
  store = Open(Options());
  EXPECT_THAT(found_.sessions, IsEmpty());
  ASSERT_THAT(found_.damaged, SizeIs(1));
  EXPECT_THAT(found_.damaged[0], HasSubstr(kStored));
  EXPECT_THAT(server_->Keys(""), Contains(absl::StrCat("damaged/", kStored)));
  EXPECT_TRUE(absl::IsNotFound(Acquire(*store).status()));
}

// The object names parts that are not there.
TEST_F(S3StoreTest, ASnapshotIsReadUpToTheFirstPartThatIsMissing) {
  auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Append(*store, 0).ok());
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  store.reset();
  SessionObject object = Object();
  object.snapshot_parts = 1 << 20;
  S3Client& client = server_->client();
  ASSERT_TRUE(client.PutObject(SessionKey(kStored), EncodeSessionObject(object), {}, kNever).ok());
  ASSERT_TRUE(client.Delete(SnapshotKeys(kStored, object).front(), kNever).ok());
  store = Open(Options());
  ASSERT_THAT(found_.damaged, SizeIs(1));
  EXPECT_THAT(found_.damaged[0], HasSubstr("snapshot: 0 bytes, expected 5"));
}

// The copy is all that is left of a session. Whoever makes it again, or gets no answer, keeps it.
TEST_F(S3StoreTest, AQuarantinedSessionIsKept) {
  S3Client& client = server_->client();
  const std::string copy = absl::StrCat(kDamagedPrefix, kStored), bad = "no session";
  const absl::Status why = absl::DataLossError("it is damaged");
  const auto quarantine = [&](const std::string& etag) {
    return QuarantineDamaged(client, kStored, etag, why, kNever);
  };
  std::string etag = client.PutObject(SessionKey(kStored), bad, {}, kNever).value();
  server_->Control("lose=1&word=session/");
  const absl::Status lost_answer = quarantine(etag);
  EXPECT_TRUE(absl::IsDataLoss(lost_answer)) << lost_answer;
  EXPECT_EQ(client.GetObject(copy, kNever)->bytes, bad);
  EXPECT_TRUE(Object().removed);
  // Another server was as fast.
  etag = client.PutObject(SessionKey(kStored), bad, {}, kNever).value();
  server_->Control("late=0.3&count=1&word=session/");
  std::thread other([&] { (void)QuarantineDamaged(client, kStored, etag, why, {}); });
  const absl::Status status = quarantine(etag);
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsAborted(status)) << status;
  other.join();
  EXPECT_EQ(client.GetObject(copy, kNever)->bytes, bad);
  // It is a good one meanwhile.
  const std::string good = EncodeSessionObject({.owner = "me", .epoch = 1, .tail = "t"});
  ASSERT_TRUE(client.PutObject(SessionKey(kStored), good, {}, kNever).ok());
  EXPECT_TRUE(absl::IsAborted(quarantine("")));
  EXPECT_EQ(Object().tail, "t");
}

TEST_F(S3StoreTest, AnAnswerThatMayBeIncompleteIsNone) {
  S3StoreOptions options = Options();
  options.reply_timeout = absl::Seconds(20);
  options.patience = absl::Milliseconds(300);
  const auto store = Open(options);
  ASSERT_TRUE(Create(*store).ok());
  for (const std::string fault : {"etag", "length"}) {
    server_->Control(absl::StrCat("get=", fault));
    const absl::Status status = Read(*store).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(fault == "etag" ? "an ETag" : "a length"));
  }
  server_->Control("get=none");
  EXPECT_TRUE(Append(*store, 0).ok());
  S3Client& client = server_->client();
  EXPECT_TRUE(absl::IsInternal(client.PutObject("x", "x", Precondition::This(""), {}).status()));
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
  ASSERT_TRUE(client.PutObject("probe/tried", "x", {}, kNever).ok());
  ASSERT_TRUE(client.ProbeDelete("probe/tried", kNever).ok());
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

// Between the two requests of a removal, the name may be another session's: such an object store
// would delete that. What is left of the removed session says that it is none.
TEST_F(S3StoreTest, WhereDeletionsHaveNoConditionARemovedSessionLeavesItsName) {
  server_->Control("careless=create");
  const auto old = Open(Options());
  ASSERT_TRUE(Create(*old, "other").ok());
  ASSERT_TRUE(
      ResultOf<absl::Status>([&](auto done) { old->Remove("other", std::move(done)); }).ok());
  EXPECT_THAT(server_->Keys("session/"), SizeIs(1));
  server_->Control("careless=delete");
  const auto store = Open(Options());
  ASSERT_TRUE(Create(*store).ok());
  ASSERT_TRUE(Append(*store, 0).ok());
  ASSERT_TRUE(Snapshot(*store, 1).ok());
  ASSERT_TRUE(Remove(*store).ok());
  EXPECT_TRUE(Object().removed);
  EXPECT_TRUE(absl::IsNotFound(Acquire(*store).status()));
  const auto second = Open(Options());
  EXPECT_THAT(found_.sessions, IsEmpty());
  EXPECT_THAT(found_.damaged, IsEmpty());
  S3Client& client = server_->client();
  const std::string orphan = DataKey(kStored, "snapshot-x.1");
  ASSERT_TRUE(client.PutObject(orphan, "x", {}, kNever).ok());
  server_->Control("jump=90000");
  OwnedSessions owned(client, "tester", 1 << 20);
  Garbage garbage(client, owned, Options());
  ASSERT_TRUE(garbage.SweepOrphans(absl::Seconds(20)).ok());
  EXPECT_THAT(server_->Keys("data/"), Not(Contains(orphan)));
  EXPECT_TRUE(Object().removed);
  ASSERT_TRUE(Create(*second).ok());  // its name is free
  EXPECT_FALSE(Object().removed);
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

TEST_F(S3StoreTest, RefusesObjectStoresThatItCannotUse) {
  const auto refused = [](const S3StoreOptions& options) {
    const absl::Status status = S3Store::Open(options).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  S3StoreOptions options = Options();
  options.reply_timeout = absl::Seconds(20);
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
  server_->Control("status=403&count=0&careless=all");
  EXPECT_THAT(refused(Options()), HasSubstr("an object store with conditional writes"));
  server_->Control("careless=none");
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
}  // namespace ovq::s3::test
