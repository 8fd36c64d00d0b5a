// A session folder when files cannot be read or written. The rest is in
// tests/server/store/conformance_test.cc.
#include "server/disk/session_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ovq::disk::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFiled[] = "blue.0123456789abcdef0123456789abcdef";

store::JournalHead FiledHead(uint64_t version) {
  store::JournalHead head;
  head.id = kFiled;
  head.created_unix_ms = 1'700'000'000'000;
  head.version = version;
  head.mark.length = static_cast<int64_t>(version);
  return head;
}

template <class Result, class Call>
Result ValueOf(const Call& call) {
  auto result = std::make_shared<std::promise<Result>>();
  call([result](auto value) { result->set_value(std::move(value)); });
  return result->get_future().get();
}

absl::Status WriteState(const store::SessionStore::WriteParts& write) { return write({"state"}); }

class SessionFolderTest : public testing::Test {
 protected:
  SessionFolderTest() : path_(testing::TempDir() + "/files" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~SessionFolderTest() override {
    folder_.reset();
    std::filesystem::remove_all(path_);
  }

  void Open() {
    folder_.reset();
    folder_ = SessionFolder::Open({.path = path_}, [this](const store::StoreReport& report) {
                if (std::string(report.kind) == "read") read_ = report.status;
              }).value();
    found_ = folder_->Recover().value();
  }
  std::string Path(const std::string& end) const { return absl::StrCat(path_, "/", kFiled, end); }
  // Returns the ends of the names of the session's files.
  std::vector<std::string> Ends() const {
    std::vector<std::string> ends;
    for (const auto& file : std::filesystem::directory_iterator(path_)) {
      const std::string name = file.path().filename();
      if (absl::StartsWith(name, kFiled)) ends.push_back(name.substr(sizeof(kFiled) - 1));
    }
    std::ranges::sort(ends);
    return ends;
  }

  absl::Status Create(uint64_t version, store::SessionStore::MakeSnapshot make = {}) {
    return ValueOf<absl::Status>(
        [&](auto done) { folder_->Create(FiledHead(version), {}, make, done); });
  }
  absl::Status Append(int64_t at) {
    store::JournalEntry entry = {.begin = at, .tokens = {static_cast<int32_t>(at)}};
    return ValueOf<absl::Status>(
        [&](auto done) { folder_->Append(kFiled, std::move(entry), done); });
  }
  absl::Status Snapshot(uint64_t version, store::SessionStore::MakeSnapshot make = WriteState) {
    return ValueOf<absl::Status>(
        [&](auto done) { folder_->Snapshot(FiledHead(version), make, done); });
  }
  absl::Status Remove() {
    return ValueOf<absl::Status>([&](auto done) { folder_->Remove(kFiled, done); });
  }
  absl::Status Acquire() {
    return ValueOf<absl::StatusOr<store::FoundSession>>(
               [&](auto done) { folder_->Acquire(kFiled, done); })
        .status();
  }

  const std::string path_;
  std::unique_ptr<SessionFolder> folder_;
  store::RecoveredSessions found_;
  absl::Status read_;  // of the last report of a session's files
};

// A file may be whole and yet not to be read now: too many files are open, a disk does not answer.
TEST_F(SessionFolderTest, AFileThatCannotBeReadIsNoDamage) {
  Open();
  ASSERT_TRUE(Create(0).ok());
  ASSERT_TRUE(Append(0).ok());
  ASSERT_TRUE(Snapshot(1).ok());
  for (const char* end : {".journal", "-1.session"}) {
    folder_.reset();
    std::filesystem::rename(Path(end), path_ + "/kept");
    std::filesystem::create_symlink(Path(end), Path(end));  // it leads nowhere but to itself
    Open();
    EXPECT_THAT(found_.sessions, IsEmpty());
    EXPECT_THAT(found_.damaged, ElementsAre(HasSubstr(kFiled)));
    EXPECT_EQ(found_.elsewhere, 0u);
    const absl::Status refused = Acquire();
    EXPECT_FALSE(refused.ok() || absl::IsDataLoss(refused) || absl::IsUnavailable(refused))
        << refused;
    EXPECT_THAT(refused.message(), HasSubstr(kFiled));
    EXPECT_EQ(read_, refused);
    EXPECT_EQ(folder_->owned(), 0u);
    EXPECT_TRUE(std::filesystem::is_empty(path_ + "/damaged"));
    std::filesystem::remove(Path(end));
    std::filesystem::rename(path_ + "/kept", Path(end));
    const absl::Status status = Acquire();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(Ends(), ElementsAre("-1.session", ".journal"));
  }
}

TEST_F(SessionFolderTest, AMissingSnapshotIsDamage) {
  Open();
  ASSERT_TRUE(Create(1, WriteState).ok());
  folder_.reset();
  std::filesystem::remove(Path("-1.session"));
  Open();
  EXPECT_THAT(found_.damaged, ElementsAre(HasSubstr("-1.session")));
  EXPECT_TRUE(absl::IsDataLoss(read_)) << read_;
  EXPECT_TRUE(std::filesystem::exists(absl::StrCat(path_, "/damaged/", kFiled, ".journal")));
  EXPECT_TRUE(absl::IsNotFound(Acquire()));
}

// Texts are written beside the other changes, which do not wait for them.
TEST_F(SessionFolderTest, TextsChangeInTheOrderOfTheCalls) {
  Open();
  ASSERT_TRUE(Create(0).ok());
  constexpr int kThreads = 16;  // more than the folder has
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  for (int i = 0; i < kThreads; ++i) folder_->Run([gone] { gone.wait(); });
  std::promise<absl::Status> put;
  folder_->PutText(kFiled, std::make_shared<const std::string>("first"),
                   [&](const absl::Status& status) { put.set_value(status); });
  folder_->RemoveText(kFiled);
  ASSERT_TRUE(Append(0).ok());  // behind the removal
  go.set_value();
  const absl::Status status = put.get_future().get();
  EXPECT_TRUE(status.ok()) << status;
  const auto text = [&] {
    return ValueOf<absl::StatusOr<std::string>>(
        [&](auto done) { folder_->ReadText(kFiled, done); });
  };
  EXPECT_TRUE(absl::IsNotFound(text().status()));
  EXPECT_THAT(Ends(), ElementsAre(".journal"));
  folder_->RemoveText(kFiled);
  const absl::Status second = ValueOf<absl::Status>([&](auto done) {
    folder_->PutText(kFiled, std::make_shared<const std::string>("second"), done);
  });
  ASSERT_TRUE(second.ok()) << second;
  EXPECT_EQ(text().value(), "second");
  EXPECT_THAT(Ends(), ElementsAre(".journal", ".text"));
}

TEST_F(SessionFolderTest, ATextWithoutItsNameIsRemovedAtTheStart) {
  Open();
  ASSERT_TRUE(Create(0).ok());
  folder_.reset();
  const std::string nobody = path_ + "/key-1.00000000000000000000000000000000";
  for (const std::string& file :
       {Path(".text.7"), Path(".text.12.part"), nobody + ".text.3", nobody + ".text.part"}) {
    std::filesystem::copy_file(Path(".journal"), file);
  }
  Open();
  EXPECT_EQ(found_.sessions.size(), 1u);
  EXPECT_THAT(Ends(), ElementsAre(".journal"));
  EXPECT_FALSE(std::filesystem::exists(nobody + ".text.3"));
  EXPECT_FALSE(std::filesystem::exists(nobody + ".text.part"));
}

TEST_F(SessionFolderTest, WhatCannotBeRemovedKeepsNoServerFromStarting) {
  Open();
  ASSERT_TRUE(Create(0).ok());
  folder_.reset();
  const std::string name(32, '0'), folder = absl::StrCat(path_, "/", name, ".text");
  std::filesystem::create_directory(folder);
  folder_ = SessionFolder::Open({.path = path_}, [this](const store::StoreReport& report) {
              read_ = report.status;
            }).value();
  const absl::StatusOr<store::RecoveredSessions> found = folder_->Recover();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->sessions.size(), 1u);
  EXPECT_THAT(found->damaged, IsEmpty());
  EXPECT_THAT(read_.message(), HasSubstr(name));
  EXPECT_TRUE(std::filesystem::exists(folder));
}

// Somebody exports sessions into the folder, or keeps notes there.
TEST_F(SessionFolderTest, FilesThatNoServerHasWrittenStay) {
  Open();
  ASSERT_TRUE(Create(1, WriteState).ok());
  folder_.reset();
  const std::string id(32, '0');
  const std::vector<std::string> others = {"backup.session",    "backup-2.session",
                                           "notes.text",        "notes.text.1",
                                           "a.journal.part",    id + ".session",
                                           id + "-old.session", "1" + id + ".text",
                                           ".session",          kFiled + std::string("-.session")};
  for (const std::string& name : others) {
    std::filesystem::copy_file(Path(".journal"), path_ + "/" + name);
  }
  const std::vector<std::string> leftovers = {id + "-2.session", id + ".text", id + ".journal.part",
                                              kFiled + std::string("-2.session")};
  for (const std::string& name : leftovers) {
    std::filesystem::copy_file(Path(".journal"), path_ + "/" + name);
  }
  Open();
  EXPECT_EQ(found_.sessions.size(), 1u);
  for (const std::string& name : others) {
    EXPECT_TRUE(std::filesystem::exists(path_ + "/" + name)) << name;
  }
  for (const std::string& name : leftovers) {
    EXPECT_FALSE(std::filesystem::exists(path_ + "/" + name)) << name;
  }
}

// Whoever makes a session chooses its key, which may be another session's id and more.
TEST_F(SessionFolderTest, QuarantineLeavesASessionWhoseIdBeginsAlike) {
  Open();
  const std::string id(32, 'a'), other = absl::StrCat(id, "-fork.", id);
  for (const std::string& one : {id, other}) {
    store::JournalHead head = FiledHead(1);
    head.id = one;
    ASSERT_TRUE(ValueOf<absl::Status>([&](auto done) {
                  folder_->Create(head, {}, WriteState, done);
                }).ok());
  }
  folder_->Quarantine(id);
  EXPECT_TRUE(std::filesystem::exists(absl::StrCat(path_, "/damaged/", id, "-1.session")));
  EXPECT_TRUE(std::filesystem::exists(absl::StrCat(path_, "/", other, "-1.session")));
  Open();
  EXPECT_THAT(found_.damaged, IsEmpty());
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].head.id, other);
}

TEST_F(SessionFolderTest, AnEmptySessionNeedsNoSnapshot) {
  Open();
  ASSERT_TRUE(Create(0).ok());
  ASSERT_TRUE(Snapshot(0).ok());
  EXPECT_THAT(Ends(), ElementsAre(".journal"));
  ASSERT_TRUE(Remove().ok());
  EXPECT_THAT(Ends(), IsEmpty());
}

TEST(TextOrder, ALaterChangeEndsTheEarlierOnes) {
  TextOrder order;
  const uint64_t a = order.Begin("a"), b = order.Begin("b"), later = order.Begin("a");
  EXPECT_TRUE(order.End("a", later));
  EXPECT_FALSE(order.End("a", a));
  EXPECT_TRUE(order.End("b", b));
  EXPECT_TRUE(order.End("a", order.Begin("a")));
}

// A disk that becomes full after the snapshot was written and before the journal is.
class FullDiskTest : public SessionFolderTest {
 protected:
  void SetUp() override { Open(); }
  // Until it is called with false, no journal is replaced.
  void BreakJournals(bool broken) {
    const std::string part = Path(".journal.part");
    broken ? (void)std::filesystem::create_directory(part) : (void)std::filesystem::remove(part);
  }
};

TEST_F(FullDiskTest, ASnapshotThatNoJournalNamesIsRemoved) {
  ASSERT_TRUE(Create(0).ok());
  ASSERT_TRUE(Append(0).ok());
  BreakJournals(true);
  EXPECT_FALSE(Snapshot(1).ok());
  EXPECT_THAT(Ends(), ElementsAre(".journal", ".journal.part"));
  BreakJournals(false);
  ASSERT_TRUE(Append(1).ok());
  ASSERT_TRUE(Snapshot(2).ok());
  BreakJournals(true);
  EXPECT_FALSE(Snapshot(3).ok());
  EXPECT_FALSE(Snapshot(2).ok());  // this one the journal names
  BreakJournals(false);
  EXPECT_THAT(Ends(), ElementsAre("-2.session", ".journal"));
  Open();
  ASSERT_EQ(found_.sessions.size(), 1u);
  EXPECT_EQ(found_.sessions[0].version, 2u);
  const auto too_late = [](const store::SessionStore::WriteParts& write) {
    EXPECT_TRUE(write({"state"}).ok());
    return absl::InternalError("no more");
  };
  EXPECT_TRUE(absl::IsInternal(Snapshot(4, too_late)));
  EXPECT_THAT(Ends(), ElementsAre("-2.session", ".journal"));
}

// A state has other bytes where the next server signs what the one before did not.
TEST_F(FullDiskTest, ASnapshotThatTheJournalNamesStaysAsTheJournalSays) {
  const auto write_signed = [](const store::SessionStore::WriteParts& write) {
    return write({"state", "signature"});
  };
  ASSERT_TRUE(Create(1, WriteState).ok());
  BreakJournals(true);
  EXPECT_FALSE(Snapshot(1, write_signed).ok());
  BreakJournals(false);
  for (int restart = 0; restart < 2; ++restart) {
    Open();
    EXPECT_THAT(found_.damaged, IsEmpty());
    ASSERT_EQ(found_.sessions.size(), 1u);
    EXPECT_THAT(Ends(), ElementsAre("-1.session", ".journal"));
    EXPECT_TRUE(Snapshot(1, write_signed).ok());
  }
}

TEST_F(FullDiskTest, ADeletedSessionLeavesNoFile) {
  ASSERT_TRUE(Create(1, WriteState).ok());
  BreakJournals(true);
  EXPECT_FALSE(Snapshot(2).ok());
  EXPECT_FALSE(Snapshot(3).ok());
  BreakJournals(false);
  ASSERT_TRUE(Remove().ok());
  EXPECT_THAT(Ends(), IsEmpty());
}

TEST_F(FullDiskTest, ASessionThatCouldNotBeCreatedLeavesNoFile) {
  BreakJournals(true);
  EXPECT_FALSE(Create(1, WriteState).ok());
  BreakJournals(false);
  EXPECT_THAT(Ends(), IsEmpty());
}

}  // namespace
}  // namespace ovq::disk::test
