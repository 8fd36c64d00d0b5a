// A store that takes its time: what waits for it when the server ends, or when another one asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/disk/session_folder.h"
#include "tests/server/engine/delegating_store.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

// A folder that holds reads of sessions and writes of texts back until it is let go.
class HoldingStore final : public DelegatingStore {
 public:
  using DelegatingStore::DelegatingStore;

  void Hold() {
    std::lock_guard lock(mutex_);
    holds_ = true;
  }
  void AwaitHeld() {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [this] { return !held_.empty(); });
  }
  void LetGo() {
    std::unique_lock lock(mutex_);
    holds_ = false;
    const std::vector<std::function<void()>> held = std::move(held_);
    lock.unlock();
    for (const auto& call : held) call();
  }
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override {
    Later([this, id, text, done] { DelegatingStore::PutText(id, text, done); });
  }
  void Read(const std::string& id,
            std::function<void(absl::StatusOr<store::StoredSession>)> opened) override {
    Later([this, id, opened] { DelegatingStore::Read(id, opened); });
  }

 private:
  void Later(std::function<void()> call) {
    std::unique_lock lock(mutex_);
    if (holds_) {
      held_.push_back(std::move(call));
      cv_.notify_all();
    } else {
      lock.unlock();
      call();
    }
  }

  std::mutex mutex_;
  std::condition_variable cv_;
  bool holds_ = false;
  std::vector<std::function<void()>> held_;
};

class HeldStore : public testing::Test {
 protected:
  HeldStore() : path_(testing::TempDir() + "/held_store" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~HeldStore() override { std::filesystem::remove_all(path_); }

  std::shared_ptr<HoldingStore> MakeStore() {
    return std::make_shared<HoldingStore>(disk::SessionFolder::Open({.path = path_}).value());
  }
  // An engine on the store, with the sessions that are there.
  static std::unique_ptr<TestEngine> Start(const std::shared_ptr<HoldingStore>& store) {
    absl::StatusOr<store::RecoveredSessions> found = store->Recover();
    EXPECT_TRUE(found.ok()) << found.status();
    EngineOptions options;
    options.session_store = store;
    auto engine = std::make_unique<TestEngine>(options);
    EXPECT_TRUE((*engine)->sessions().Adopt(std::move(found->sessions)).empty());
    return engine;
  }

  const std::string path_;
};

TEST_F(HeldStore, ATurnThatStillWaitsForItsSessionEndsWithTheServer) {
  std::string id;
  {
    const auto engine = Start(MakeStore());
    id = engine->NewSession().id;
    EXPECT_TRUE(engine->Run(Turn(id, {1, 2, 3}, 4)).status.ok());
  }
  const std::shared_ptr<HoldingStore> store = MakeStore();
  const auto engine = Start(store);
  store->Hold();
  const std::shared_ptr<TokenStream> stream = engine->Start(Turn(id, {5}, 2000), 1 << 20);
  store->AwaitHeld();
  const std::shared_ptr<TokenStream> running = engine->Start(SampleRequest({1}, INT64_MAX));
  std::thread drain([&] { EXPECT_FALSE((*engine)->Drain(absl::Milliseconds(5))); });
  // The time is up, and everything that runs has ended.
  EXPECT_TRUE(absl::IsUnavailable(ReadAll(*running).status));
  store->LetGo();
  drain.join();
  const absl::Status status = ReadAll(*stream).status;
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(HeldStore, ASessionGoesToAnotherServerWhenItsTextIsWritten) {
  const std::shared_ptr<HoldingStore> store = MakeStore();
  const auto first = Start(store), second = Start(MakeStore());
  const std::string id = first->NewSession().id;
  EXPECT_TRUE(first->Run(Turn(id, {1, 2, 3}, 4)).status.ok());
  store->Hold();
  absl::Status put = absl::UnknownError("no answer");
  std::thread putting([&] { put = (*first)->sessions().PutText(id, "", "text"); });
  store->AwaitHeld();
  Receiver<absl::StatusOr<SessionInfo>> acquired;
  (*second)->sessions().Get(id, "", acquired.callback());
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_FALSE(acquired.has_value());
  store->LetGo();
  putting.join();
  EXPECT_TRUE(put.ok()) << put;
  const absl::StatusOr<SessionInfo> info = acquired.Wait();
  ASSERT_TRUE(info.ok()) << info.status();
  const auto text = (*second)->sessions().GetText(id, "", [](size_t) { return absl::OkStatus(); });
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(**text, "text");
  // A text of a session that is elsewhere brings it back.
  EXPECT_TRUE((*first)->sessions().PutText(id, "", "another").ok());
  EXPECT_TRUE((*first)->sessions().Get(id, "").ok());
}

}  // namespace
}  // namespace ovq::engine::test
