// A store in a Redis of a test's own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/redis/redis_store.h"
#include "tests/server/store/redis_process.h"

namespace ovq::redis::test {

using store::test::RedisProcess;

inline constexpr char kSession[] = "blue.0123456789abcdef0123456789abcdef";

inline store::JournalHead HeadNamed(const std::string& id) {
  store::JournalHead head;
  head.id = id;
  head.created_unix_ms = 1'700'000'000'000;
  return head;
}

inline store::JournalEntry TokenAt(int64_t at) {
  return {.begin = at, .tokens = {static_cast<int32_t>(at)}};
}

template <class Result, class Call>
Result Await(const Call& call) {
  auto result = std::make_shared<std::promise<Result>>();
  call([result](auto value) { result->set_value(std::move(value)); });
  return result->get_future().get();
}

class RedisStoreFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (access(store::test::kRedisServer, X_OK) != 0) {
      GTEST_SKIP() << "no " << store::test::kRedisServer;
    }
    redis_ = std::make_unique<RedisProcess>();
  }

  RedisStoreOptions Options() const {
    return {.address = redis_->address(),
            .lease = absl::Seconds(1),
            .reply_timeout = absl::Milliseconds(300),
            .patience = absl::Seconds(3),
            .ownership_timeout = absl::Seconds(3)};
  }
  std::unique_ptr<RedisStore> Open(const RedisStoreOptions& options) {
    auto store = RedisStore::Open(options, [this](const store::StoreReport& report) {
      std::lock_guard lock(mutex_);
      if (absl::IsAborted(report.status) || absl::IsUnknown(report.status)) ++fenced_;
    });
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return nullptr;
    const absl::StatusOr<store::RecoveredSessions> found = (*store)->Recover();
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(store);
  }
  static absl::Status Create(RedisStore& store, const std::string& id = kSession) {
    return Await<absl::Status>([&](auto done) { store.Create(HeadNamed(id), {}, {}, done); });
  }
  static absl::Status Append(RedisStore& store, int64_t at, const std::string& id = kSession) {
    return Await<absl::Status>([&](auto done) { store.Append(id, TokenAt(at), done); });
  }
  static absl::Status Snapshot(RedisStore& store, uint64_t version) {
    store::JournalHead head = HeadNamed(kSession);
    head.version = version;
    head.mark.length = static_cast<int64_t>(version);
    return Await<absl::Status>([&](auto done) {
      store.Snapshot(
          head, [](const store::SessionStore::WriteParts& write) { return write({"state"}); },
          done);
    });
  }
  static absl::StatusOr<store::FoundSession> Acquire(RedisStore& store) {
    return Await<absl::StatusOr<store::FoundSession>>(
        [&](auto done) { store.Acquire(kSession, done); });
  }
  static uint64_t Version(RedisStore& store) {
    const auto stored =
        Await<absl::StatusOr<store::StoredSession>>([&](auto done) { store.Read(kSession, done); });
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? stored->journal.version() : 0;
  }

  std::unique_ptr<RedisProcess> redis_;
  std::mutex mutex_;
  int fenced_ = 0;
};

}  // namespace ovq::redis::test
