// A store in an object store of a test's own.
#pragma once

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/s3/s3_store.h"
#include "tests/server/store/s3_process.h"

namespace ovq::s3::test {

using store::test::S3Process;

inline constexpr char kStored[] = "blue.0123456789abcdef0123456789abcdef";

inline store::JournalHead StoredHead(const std::string& id) {
  store::JournalHead head;
  head.id = id;
  head.created_unix_ms = 1'700'000'000'000;
  return head;
}

inline store::JournalEntry StoredToken(int64_t at) {
  return {.begin = at, .tokens = {static_cast<int32_t>(at)}};
}

template <class Result, class Call>
Result ResultOf(const Call& call) {
  auto result = std::make_shared<std::promise<Result>>();
  call([result](auto value) { result->set_value(std::move(value)); });
  return result->get_future().get();
}

// Sanitized servers do all of it as much more slowly.
#ifdef OVQ_SANITIZED
inline constexpr int kSlowness = 3;
#else
inline constexpr int kSlowness = 1;
#endif

template <class Holds>
bool Eventually(const Holds& holds) {
  for (int i = 0; i < kSlowness * 2000; ++i) {
    if (holds()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

class S3StoreFixture : public testing::Test {
 protected:
  void SetUp() override {
    server_ = std::make_unique<S3Process>(std::vector<std::string>{"--page", "2"});
  }

  S3StoreOptions Options(int port = 0) const {
    return {.address = server_->address(port),
            .credentials = S3Process::credentials(),
            .lease = kSlowness * absl::Seconds(1),
            .reply_timeout = kSlowness * absl::Milliseconds(300),
            .patience = kSlowness * absl::Seconds(3),
            .ownership_timeout = kSlowness * absl::Seconds(4),
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

}  // namespace ovq::s3::test
