// Every session store keeps what it has acknowledged, in order, for one server at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/store/backends.h"

namespace ovq::store::test {
namespace {

using testing::HasSubstr;

constexpr char kId[] = "blue.0123456789abcdef0123456789abcdef";
constexpr char kOther[] = "blue.fedcba9876543210fedcba9876543210";
// How long those wait for another server that do not count on its answer.
constexpr absl::Duration kHaste = absl::Milliseconds(300);

JournalHead NewHead(const std::string& id) {
  JournalHead head;
  head.id = id;
  head.tenant = "ann";
  head.cache_policy = "paper";
  head.fingerprint = std::string(64, 'f');
  head.layout = 77;
  head.slot_cap = 40;
  head.keeps_tokens = true;
  head.created_unix_ms = 1'700'000'000'000;
  return head;
}

// One token at the place `at`.
JournalEntry OneToken(int64_t at, int32_t token) {
  return {.begin = at, .tokens = {token}, .pending = token};
}

// Calls a function with a callback and waits for its result.
template <class Result, class Call>
Result Wait(const Call& call) {
  auto result = std::make_shared<std::promise<Result>>();
  call([result](auto value) { result->set_value(std::move(value)); });
  return result->get_future().get();
}

class Store : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    auto [backend, why_not] = GetParam().make();
    if (backend == nullptr) GTEST_SKIP() << why_not;
    backend_ = std::move(backend);
    store_ = OpenOne();
  }

  std::unique_ptr<SessionStore> OpenOne(absl::Duration ownership_timeout = absl::Seconds(60)) {
    std::unique_ptr<SessionStore> store = backend_->Open(ownership_timeout);
    const absl::StatusOr<RecoveredSessions> found = store->Recover();
    EXPECT_TRUE(found.ok()) << found.status();
    if (found.ok()) found_ = *found;
    return store;
  }
  // Ends the server and starts it again.
  void Restart() {
    store_.reset();
    store_ = OpenOne();
  }

  absl::Status Create(const std::string& id, std::vector<JournalEntry> entries = {}) {
    return Wait<absl::Status>(
        [&](auto done) { store_->Create(NewHead(id), std::move(entries), {}, done); });
  }
  absl::Status Append(SessionStore& store, const std::string& id, JournalEntry entry) {
    return Wait<absl::Status>([&](auto done) { store.Append(id, std::move(entry), done); });
  }
  // Replaces the snapshot of a session of so many changes, each of one token.
  absl::Status Snapshot(SessionStore& store, const std::string& id, uint64_t version,
                        std::vector<std::string> parts) {
    JournalHead head = NewHead(id);
    head.version = version;
    head.mark.length = static_cast<int64_t>(version);
    return Wait<absl::Status>([&](auto done) {
      store.Snapshot(
          head,
          [parts](const SessionStore::WriteParts& write) {
            return write(std::vector<std::string_view>(parts.begin(), parts.end()));
          },
          done);
    });
  }
  absl::Status PutText(const std::string& id, const std::string& text) {
    return Wait<absl::Status>(
        [&](auto done) { store_->PutText(id, std::make_shared<const std::string>(text), done); });
  }
  absl::StatusOr<std::string> ReadText(const std::string& id) {
    return Wait<absl::StatusOr<std::string>>([&](auto done) { store_->ReadText(id, done); });
  }
  absl::StatusOr<FoundSession> Acquire(SessionStore& store, const std::string& id) {
    return Wait<absl::StatusOr<FoundSession>>([&](auto done) { store.Acquire(id, done); });
  }
  absl::StatusOr<StoredSession> Read(const std::string& id) {
    return Wait<absl::StatusOr<StoredSession>>([&](auto done) { store_->Read(id, done); });
  }
  // The last tokens of all entries that the journal has.
  std::vector<int32_t> Tokens(const std::string& id) {
    const absl::StatusOr<StoredSession> stored = Read(id);
    EXPECT_TRUE(stored.ok()) << stored.status();
    std::vector<int32_t> tokens;
    if (!stored.ok()) return tokens;
    for (const JournalEntry& entry : stored->journal.entries) {
      tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
    }
    return tokens;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SessionStore> store_;
  RecoveredSessions found_;
};

TEST_P(Store, KeepsTheOrderOfAllOperationsOfASession) {
  ASSERT_TRUE(Create(kId).ok());
  ASSERT_TRUE(Create(kOther).ok());
  std::atomic<int> ready = 0;
  std::vector<int> order;
  std::mutex mutex;
  constexpr int kEntries = 200;
  for (int i = 0; i < kEntries; ++i) {
    for (const char* id : {kId, kOther}) {
      store_->Append(id, OneToken(i, i), [&, i, id](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        std::lock_guard lock(mutex);
        if (id == kId) order.push_back(i);
        ++ready;
      });
    }
  }
  while (ready < 2 * kEntries) std::this_thread::yield();
  EXPECT_TRUE(std::ranges::is_sorted(order));
  std::vector<int32_t> expected(kEntries);
  for (int i = 0; i < kEntries; ++i) expected[i] = i;
  EXPECT_EQ(Tokens(kId), expected);
  EXPECT_EQ(Tokens(kOther), expected);
  Restart();
  ASSERT_EQ(found_.sessions.size(), 2u);
  EXPECT_EQ(found_.sessions[0].version, uint64_t{kEntries});
  EXPECT_EQ(found_.sessions[0].mark.length, kEntries);
  EXPECT_EQ(found_.sessions[0].head.tenant, "ann");
  EXPECT_EQ(Tokens(kOther), expected);
}

TEST_P(Store, ASessionMayBeginWithEntriesAndASnapshot) {
  JournalHead head = NewHead(kId);
  head.version = 1;
  head.mark.length = 3;
  const absl::Status status = Wait<absl::Status>([&](auto done) {
    store_->Create(
        head, {OneToken(3, 5)},
        [](const SessionStore::WriteParts& write) {
          return write({"ab", "", "c"});
        },
        done);
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(Create(kId).ok());  // there is such a session
  absl::StatusOr<StoredSession> stored = Read(kId);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->journal.version(), 2u);
  ASSERT_NE(stored->snapshot, nullptr);
  EXPECT_EQ(stored->snapshot->bytes(), 3u);
  std::string bytes(3, ' ');
  ASSERT_TRUE(stored->snapshot->Read(bytes).ok());
  EXPECT_EQ(bytes, "abc");
  EXPECT_EQ(stored->snapshot->left(), 0u);
  EXPECT_TRUE(absl::IsDataLoss(stored->snapshot->Read(bytes)));
}

TEST_P(Store, ASnapshotReplacesTheJournalUpToItsVersion) {
  ASSERT_TRUE(Create(kId).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Append(*store_, kId, OneToken(i, i)).ok());
  ASSERT_TRUE(Snapshot(*store_, kId, 3, {"state"}).ok());
  EXPECT_EQ(Tokens(kId), std::vector<int32_t>{3});
  ASSERT_TRUE(Append(*store_, kId, OneToken(4, 4)).ok());
  Restart();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].version, 5u);
  EXPECT_EQ(Tokens(kId), (std::vector<int32_t>{3, 4}));
  ASSERT_TRUE(Snapshot(*store_, kId, 5, {"newer"}).ok());
  EXPECT_EQ(Tokens(kId), std::vector<int32_t>{});
  EXPECT_EQ(Read(kId)->journal.head.snapshot_bytes, 5u);
}

// A snapshot that took long to write comes after a later one.
TEST_P(Store, AnOlderSnapshotReplacesNoNewerOne) {
  ASSERT_TRUE(Create(kId).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Append(*store_, kId, OneToken(i, i)).ok());
  ASSERT_TRUE(Snapshot(*store_, kId, 3, {"newer"}).ok());
  ASSERT_TRUE(Snapshot(*store_, kId, 2, {"old"}).ok());
  EXPECT_EQ(Tokens(kId), std::vector<int32_t>{3});
  const absl::StatusOr<StoredSession> stored = Read(kId);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->journal.head.version, 3u);
  std::string bytes(5, ' ');
  ASSERT_TRUE(stored->snapshot->Read(bytes).ok());
  EXPECT_EQ(bytes, "newer");
}

TEST_P(Store, LargeSnapshotsComeBackToTheByte) {
  std::mt19937_64 random(7);
  std::vector<std::string> parts(3);
  std::string all;
  for (std::string& part : parts) {
    part.resize(7'000'001);
    std::ranges::generate(part, [&] { return static_cast<char>(random()); });
    all += part;
  }
  ASSERT_TRUE(Create(kId).ok());
  ASSERT_TRUE(Append(*store_, kId, OneToken(0, 1)).ok());
  ASSERT_TRUE(Snapshot(*store_, kId, 1, parts).ok());
  absl::StatusOr<StoredSession> stored = Read(kId);
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_EQ(stored->snapshot->bytes(), all.size());
  std::string bytes(all.size(), ' ');
  for (size_t at = 0; at < all.size();) {
    const size_t n = std::min<size_t>(1'234'567, all.size() - at);
    ASSERT_TRUE(stored->snapshot->Read(std::span(bytes).subspan(at, n)).ok());
    at += n;
  }
  EXPECT_TRUE(bytes == all);
}

TEST_P(Store, AFailedAppendLeavesTheSessionAsItWas) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  backend_->BreakAppends(kId, true);
  EXPECT_FALSE(Append(*store_, kId, OneToken(1, 2)).ok());
  backend_->BreakAppends(kId, false);
  EXPECT_EQ(Tokens(kId), std::vector<int32_t>{1});
  // The change that failed counts, and the snapshot has it.
  ASSERT_TRUE(Snapshot(*store_, kId, 2, {"state"}).ok());
  ASSERT_TRUE(Append(*store_, kId, OneToken(2, 3)).ok());
  EXPECT_EQ(Read(kId)->journal.version(), 3u);
}

TEST_P(Store, ARemovedSessionIsGone) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  ASSERT_TRUE(Snapshot(*store_, kId, 1, {"state"}).ok());
  ASSERT_TRUE(PutText(kId, "text").ok());
  const absl::Status removed = Wait<absl::Status>([&](auto done) { store_->Remove(kId, done); });
  ASSERT_TRUE(removed.ok()) << removed;
  EXPECT_TRUE(absl::IsNotFound(Read(kId).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadText(kId).status()));
  EXPECT_TRUE(Snapshot(*store_, kId, 2, {"state"}).ok());
  EXPECT_TRUE(PutText(kId, "late").ok());
  EXPECT_TRUE(absl::IsNotFound(ReadText(kId).status()));
  EXPECT_TRUE(absl::IsNotFound(Acquire(*store_, kId).status()));
  Restart();
  EXPECT_TRUE(found_.sessions.empty());
  EXPECT_TRUE(Create(kId).ok());  // its name is free again
}

TEST_P(Store, TextsAreReplacedAndRemoved) {
  ASSERT_TRUE(Create(kId).ok());
  EXPECT_TRUE(absl::IsNotFound(ReadText(kId).status()));
  ASSERT_TRUE(PutText(kId, "first").ok());
  ASSERT_TRUE(PutText(kId, std::string("with\0zero", 9)).ok());
  EXPECT_EQ(ReadText(kId).value(), std::string("with\0zero", 9));
  Restart();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_GE(found_.sessions[0].text_bytes, 9u);
  EXPECT_EQ(ReadText(kId).value(), std::string("with\0zero", 9));
  backend_->ChangeBytes(kId, Backend::Part::kText, [](std::string& bytes) { bytes.back() ^= 1; });
  EXPECT_TRUE(absl::IsDataLoss(ReadText(kId).status()));
  store_->RemoveText(kId);
  ASSERT_TRUE(Append(*store_, kId, OneToken(0, 1)).ok());  // behind the removal
  EXPECT_TRUE(absl::IsNotFound(ReadText(kId).status()));
}

TEST_P(Store, TheTornEndOfAJournalIsCutOff) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  store_.reset();
  backend_->ChangeBytes(kId, Backend::Part::kJournal, [](std::string& bytes) {
    const std::string entry = EncodeEntry(OneToken(1, 2));
    bytes += entry.substr(0, entry.size() - 1);
  });
  store_ = OpenOne();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].version, 1u);
  ASSERT_TRUE(Append(*store_, kId, OneToken(1, 7)).ok());
  EXPECT_EQ(Tokens(kId), (std::vector<int32_t>{1, 7}));
}

TEST_P(Store, DamagedSessionsAreQuarantined) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  ASSERT_TRUE(Create(kOther, {OneToken(0, 1)}).ok());
  ASSERT_TRUE(Snapshot(*store_, kOther, 1, {"state"}).ok());
  store_.reset();
  backend_->ChangeBytes(kId, Backend::Part::kJournal,
                        [](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; });
  backend_->ChangeBytes(kOther, Backend::Part::kSnapshot,
                        [](std::string& bytes) { bytes.pop_back(); });
  store_ = OpenOne();
  EXPECT_TRUE(found_.sessions.empty());
  ASSERT_EQ(found_.damaged.size(), 2u);
  EXPECT_THAT(found_.damaged[0], HasSubstr(kId));
  EXPECT_THAT(found_.damaged[1], HasSubstr(kOther));
  EXPECT_TRUE(absl::IsNotFound(Acquire(*store_, kId).status()));
  Restart();
  EXPECT_TRUE(found_.damaged.empty());
}

// A server of an earlier release shares the place with one of a later release, or comes after it.
TEST_P(Store, ASessionOfAnotherVersionStaysAsItIs) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  ASSERT_TRUE(Snapshot(*store_, kId, 1, {"state"}).ok());
  store_.reset();
  const auto flip = [](std::string& bytes) { bytes[8] ^= 2; };  // after the magic text
  backend_->ChangeBytes(kId, Backend::Part::kJournal, flip);
  store_ = OpenOne();
  EXPECT_TRUE(found_.sessions.empty());
  ASSERT_EQ(found_.damaged.size(), 1u);
  EXPECT_THAT(found_.damaged[0], HasSubstr(kId));
  EXPECT_THAT(found_.damaged[0], HasSubstr("this server reads version 1"));
  const absl::Status refused = Acquire(*store_, kId).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(kId));
  EXPECT_EQ(store_->owned(), 0u);
  backend_->ChangeBytes(kId, Backend::Part::kJournal, flip);
  std::unique_ptr<SessionStore> other = OpenOne();  // while the first one has it not
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].version, 1u);
  store_ = std::move(other);
  EXPECT_EQ(Read(kId)->journal.head.snapshot_bytes, 5u);
}

TEST_P(Store, AReleasedSessionIsAnotherServers) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Acquire(*store_, kId).status()));  // it is here
  std::unique_ptr<SessionStore> hasty = OpenOne(kHaste), other = OpenOne();
  EXPECT_TRUE(found_.sessions.empty());
  EXPECT_EQ(found_.elsewhere, 1u);
  EXPECT_TRUE(absl::IsNotFound(Acquire(*other, kOther).status()));
  EXPECT_TRUE(absl::IsUnavailable(Acquire(*hasty, kId).status()));  // nobody answers
  store_->SetListener({.asked = [&](const std::string& id) { store_->Decline(id); }});
  EXPECT_TRUE(absl::IsFailedPrecondition(Acquire(*other, kId).status()));
  store_->SetListener({.asked = [&](const std::string& id) { store_->Release(id); }});
  const absl::StatusOr<FoundSession> found = Acquire(*other, kId);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->version, 1u);
  ASSERT_TRUE(Append(*other, kId, OneToken(1, 2)).ok());
  store_->SetListener({});
}

// Calls get their answers while the store looks at others. Of two for a session one acquires it.
TEST_P(Store, EachOfManyAcquisitionsIsAnsweredOnce) {
  constexpr size_t kSessions = 150;
  const auto id = [](size_t i) { return absl::StrCat("many", i); };
  for (size_t i = 0; i < kSessions; ++i) ASSERT_TRUE(Create(id(i)).ok());
  std::vector<std::atomic<int>> acquired(kSessions), in_use(kSessions);
  for (int round = 1; round <= 4; ++round) {
    std::atomic<int> answers = 0;
    for (size_t i = 0; i < kSessions; ++i) store_->Release(id(i));
    for (size_t i = 0; i < 2 * kSessions; ++i) {
      const size_t session = i % kSessions;
      store_->Acquire(id(session), [&, session](const absl::StatusOr<FoundSession>& found) {
        EXPECT_TRUE(found.ok() || absl::IsFailedPrecondition(found.status())) << found.status();
        ++(found.ok() ? acquired : in_use)[session];
        ++answers;
      });
    }
    for (int i = 0; i < 3000 && answers < static_cast<int>(2 * kSessions); ++i) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    absl::SleepFor(absl::Milliseconds(50));  // for one too many
    for (const auto* counts : {&acquired, &in_use}) {
      for (const std::atomic<int>& count : *counts) ASSERT_EQ(count, round);
    }
  }
}

TEST_P(Store, OnlyTheOwnerWrites) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  ASSERT_TRUE(PutText(kId, "mine").ok());
  store_->Release(kId);
  std::unique_ptr<SessionStore> other = OpenOne();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_TRUE(absl::IsAborted(Append(*store_, kId, OneToken(1, 9))));
  EXPECT_TRUE(absl::IsAborted(Snapshot(*store_, kId, 1, {"stale"})));
  EXPECT_TRUE(absl::IsAborted(PutText(kId, "stale")));
  EXPECT_TRUE(absl::IsAborted(Wait<absl::Status>([&](auto done) { store_->Remove(kId, done); })));
  store_->RemoveText(kId);
  EXPECT_FALSE(Create(kId).ok());
  ASSERT_TRUE(Append(*other, kId, OneToken(1, 2)).ok());
  store_ = std::move(other);
  EXPECT_EQ(Tokens(kId), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Read(kId)->journal.head.version, 0u);
  EXPECT_EQ(ReadText(kId).value(), "mine");
}

TEST_P(Store, AServerThatEndsLeavesItsSessionsToOthers) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  std::unique_ptr<SessionStore> other = OpenOne();
  ASSERT_EQ(found_.elsewhere, 1u);
  store_ = std::move(other);  // the first one ends
  const absl::StatusOr<FoundSession> found = Acquire(*store_, kId);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(Append(*store_, kId, OneToken(1, 2)).ok());
  EXPECT_EQ(Tokens(kId), (std::vector<int32_t>{1, 2}));
}

TEST_P(Store, AnEntryIsStoredOnceHoweverOftenItIsSent) {
  ASSERT_TRUE(Create(kId).ok());
  backend_->LoseAcknowledgements(2);
  ASSERT_TRUE(Append(*store_, kId, OneToken(0, 1)).ok());
  EXPECT_EQ(Tokens(kId), std::vector<int32_t>{1});
  backend_->LoseAcknowledgements(1);
  ASSERT_TRUE(Snapshot(*store_, kId, 1, {"state"}).ok());
  backend_->LoseAcknowledgements(1);
  ASSERT_TRUE(PutText(kId, "text").ok());
  // Many entries go together; the first acknowledgement of them all is lost.
  backend_->LoseAcknowledgements(1);
  std::atomic<int> ready = 0;
  for (int i = 1; i <= 20; ++i) {
    store_->Append(kId, OneToken(i, i + 1), [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      ++ready;
    });
  }
  while (ready < 20) std::this_thread::yield();
  std::vector<int32_t> expected(20);
  for (int i = 0; i < 20; ++i) expected[i] = i + 2;
  EXPECT_EQ(Tokens(kId), expected);
  backend_->LoseAcknowledgements(1);
  ASSERT_TRUE(Create(kOther, {OneToken(0, 1)}).ok());
  backend_->LoseAcknowledgements(1);
  const absl::Status removed = Wait<absl::Status>([&](auto done) { store_->Remove(kOther, done); });
  EXPECT_TRUE(removed.ok()) << removed;
  backend_->LoseAcknowledgements(0);
  Restart();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].version, 21u);
  EXPECT_EQ(found_.sessions[0].mark.length, 21);
}

// A caller that does not know whether its entry is there may send it again: an entry says where in
// the conversation its tokens stand.
TEST_P(Store, TheSameEntryAgainDoublesNoToken) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Append(*store_, kId, OneToken(1, 2)).ok());
  Restart();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].mark.length, 2);
  EXPECT_EQ(found_.sessions[0].mark.pending, 2);
}

TEST_P(Store, ALostAcknowledgementOfAnAcquisitionDoesNoHarm) {
  ASSERT_TRUE(Create(kId, {OneToken(0, 1)}).ok());
  std::unique_ptr<SessionStore> other = OpenOne();
  store_->SetListener({.asked = [&](const std::string& id) { store_->Release(id); }});
  backend_->LoseAcknowledgements(2);
  const absl::StatusOr<FoundSession> found = Acquire(*other, kId);
  backend_->LoseAcknowledgements(0);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(store_->owned(), 0u);
  EXPECT_EQ(other->owned(), 1u);
  EXPECT_TRUE(Append(*other, kId, OneToken(1, 2)).ok());
  EXPECT_TRUE(absl::IsAborted(Append(*store_, kId, OneToken(1, 9))));
  store_->SetListener({});
}

// Whatever clocks say, a session has one owner, and nothing that was acknowledged is lost.
TEST_P(Store, AClockThatJumpsMakesNoSecondOwner) {
  for (const absl::Duration jump : {absl::Hours(100), -absl::Hours(100)}) {
    const std::string id = jump > absl::ZeroDuration() ? kId : kOther;
    ASSERT_TRUE(Create(id, {OneToken(0, 1)}).ok());
    std::unique_ptr<SessionStore> other = OpenOne(kHaste);
    std::atomic<int> lost = 0;
    store_->SetListener({.lost = [&](const std::string&) { ++lost; }});
    backend_->JumpClock(jump);
    const bool acquired = Acquire(*other, id).ok();
    const absl::Status here = Append(*store_, id, OneToken(1, 2));
    const absl::Status there = Append(*other, id, OneToken(1, 3));
    EXPECT_EQ(there.ok(), acquired) << there;
    EXPECT_EQ(here.ok(), !acquired) << here;
    EXPECT_EQ(lost, acquired ? 1 : 0);
    SessionStore& owner = acquired ? *other : *store_;
    ASSERT_TRUE(Append(owner, id, OneToken(2, 4)).ok());
    EXPECT_EQ(Tokens(id), (std::vector<int32_t>{1, acquired ? 3 : 2, 4}));
    store_->SetListener({});
  }
}

INSTANTIATE_TEST_SUITE_P(All, Store, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ovq::store::test
