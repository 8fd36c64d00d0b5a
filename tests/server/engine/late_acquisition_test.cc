// A store tells that a session is lost before it tells that it was acquired.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "server/disk/session_folder.h"
#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

// A folder whose next acquisition is lost, on its way to the engine or when ownership is confirmed.
class LosingStore final : public store::SessionStore {
 public:
  explicit LosingStore(std::unique_ptr<store::SessionStore> folder) : folder_(std::move(folder)) {}

  std::atomic<bool> loses = false, sure = true;
  std::atomic<int> acquisitions = 0;

  absl::StatusOr<store::RecoveredSessions> Recover() override { return folder_->Recover(); }
  void Acquire(const std::string& id, Acquired done) override {
    folder_->Acquire(id, [this, id, done](absl::StatusOr<store::FoundSession> found) {
      ++acquisitions;
      last_ = id;
      if (loses.exchange(false)) {
        found->still_owned = [] { return false; };
        folder_->Release(id);
        listener_.lost(id);
      }
      done(std::move(found));
    });
  }
  bool sure_of_ownership() const override { return sure; }
  void ConfirmOwnership(Done done) override {
    sure = true;
    folder_->Release(last_);
    listener_.lost(last_);
    done(absl::OkStatus());
  }
  void SetListener(store::OwnershipListener listener) override {
    listener_ = listener;
    folder_->SetListener(std::move(listener));
  }
  void Release(const std::string& id) override { folder_->Release(id); }
  void Decline(const std::string& id) override { folder_->Decline(id); }
  void Quarantine(const std::string& id) override { folder_->Quarantine(id); }
  size_t owned() const override { return folder_->owned(); }
  void Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
              MakeSnapshot snapshot, Done done) override {
    folder_->Create(std::move(head), std::move(entries), std::move(snapshot), std::move(done));
  }
  void Append(const std::string& id, store::JournalEntry entry, Done done) override {
    folder_->Append(id, std::move(entry), std::move(done));
  }
  void Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) override {
    folder_->Snapshot(std::move(head), std::move(snapshot), std::move(done));
  }
  void Remove(const std::string& id, Done done) override { folder_->Remove(id, std::move(done)); }
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override {
    folder_->PutText(id, std::move(text), std::move(done));
  }
  void RemoveText(const std::string& id) override { folder_->RemoveText(id); }
  void ReadText(const std::string& id,
                std::function<void(absl::StatusOr<std::string>)> done) override {
    folder_->ReadText(id, std::move(done));
  }
  void Read(const std::string& id,
            std::function<void(absl::StatusOr<store::StoredSession>)> opened) override {
    folder_->Read(id, std::move(opened));
  }
  void ReportRead(const store::StoredSession& stored, const absl::Status& status) const override {
    folder_->ReportRead(stored, status);
  }
  void Run(std::function<void()> work) override { folder_->Run(std::move(work)); }

 private:
  const std::unique_ptr<store::SessionStore> folder_;
  store::OwnershipListener listener_;
  std::string last_;  // the session that was acquired
};

TEST(LateAcquisition, ASessionThatIsLostOnItsWayIsNotHere) {
  const std::string path = testing::TempDir() + "/late_acquisition" + std::to_string(getpid());
  std::filesystem::remove_all(path);
  std::string id;
  {
    EngineOptions options;
    options.session_store = disk::SessionFolder::Open({.path = path}).value();
    ASSERT_TRUE(options.session_store->Recover().ok());
    TestEngine first(options);
    id = first.NewSession().id;
    EXPECT_TRUE(first.Run(Turn(id, {1, 2, 3}, 4, 1)).status.ok());
  }
  EngineOptions options;
  const auto store =
      std::make_shared<LosingStore>(disk::SessionFolder::Open({.path = path}).value());
  options.session_store = store;
  TestEngine second(options);
  store->loses = true;
  const absl::Status lost = second.Run(Turn(id, {5}, 2, 1)).status;
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("another server has acquired it meanwhile"));
  EXPECT_FALSE(store->loses);
  EXPECT_EQ(store->owned(), 0u);
  // It is asked for again, and once more where the lease has ended since.
  store->sure = false;
  const absl::Status there = second.Run(Turn(id, {5}, 2, 1)).status;
  EXPECT_TRUE(there.ok()) << there;
  EXPECT_TRUE(store->sure);
  EXPECT_EQ(store->acquisitions, 3);
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace ovq::engine::test
