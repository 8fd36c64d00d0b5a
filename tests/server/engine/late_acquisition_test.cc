// A store tells that a session is lost before it tells that it was acquired.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "server/disk/session_folder.h"
#include "tests/server/engine/delegating_store.h"
#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;

// A folder whose next acquisition is lost, on its way to the engine or when ownership is confirmed.
class LosingStore final : public DelegatingStore {
 public:
  using DelegatingStore::DelegatingStore;

  std::atomic<bool> loses = false, sure = true;
  std::atomic<int> acquisitions = 0;

  void Acquire(const std::string& id, Acquired done) override {
    DelegatingStore::Acquire(id, [this, id, done](absl::StatusOr<store::FoundSession> found) {
      ++acquisitions;
      last_ = id;
      if (loses.exchange(false)) {
        found->still_owned = [] { return false; };
        Release(id);
        listener_.lost(id);
      }
      done(std::move(found));
    });
  }
  bool sure_of_ownership() const override { return sure; }
  void ConfirmOwnership(Done done) override {
    sure = true;
    Release(last_);
    listener_.lost(last_);
    done(absl::OkStatus());
  }
  void SetListener(store::OwnershipListener listener) override {
    listener_ = listener;
    DelegatingStore::SetListener(std::move(listener));
  }

 private:
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
