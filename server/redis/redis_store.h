// Defines RedisStore, the store of sessions that is a Redis or Valkey server, which servers on
// several machines share (docs/session-format.md, "Sessions in Redis").
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/redis/redis_client.h"
#include "server/redis/redis_options.h"
#include "server/redis/redis_ownership.h"
#include "server/redis/redis_snapshot.h"
#include "server/redis/redis_writer.h"
#include "server/store/session_store.h"
#include "server/store/work_threads.h"

namespace ovq::redis {

class RedisStore final : public store::SessionStore {
 public:
  // Connects, and checks that Redis is one that keeps what it is given. Errors name the address.
  // `report` is called on the store's threads. warnings: what people should know of this Redis.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Open(
      RedisStoreOptions options, std::function<void(const store::StoreReport&)> report = {},
      std::vector<std::string>* warnings = nullptr);
  ~RedisStore() override;

  absl::StatusOr<store::RecoveredSessions> Recover() override { return ownership_.Recover(); }
  void Acquire(const std::string& id, Acquired done) override {
    ownership_.Acquire(id, std::move(done));
  }
  void SetListener(store::OwnershipListener listener) override {
    ownership_.SetListener(std::move(listener));
  }
  void Release(const std::string& id) override;
  void Decline(const std::string& id) override;
  void Quarantine(const std::string& id) override;
  size_t owned() const override { return sessions_.size(); }
  bool sure_of_ownership() const override { return lease_.sure(); }
  void ConfirmOwnership(Done done) override { lease_.Confirm(std::move(done)); }

  void Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
              MakeSnapshot snapshot, Done done) override;
  void Append(const std::string& id, store::JournalEntry entry, Done done) override;
  void Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) override;
  void Remove(const std::string& id, Done done) override;
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override;
  void RemoveText(const std::string& id) override;
  void ReadText(const std::string& id,
                std::function<void(absl::StatusOr<std::string>)> done) override;
  void Read(const std::string& id,
            std::function<void(absl::StatusOr<store::StoredSession>)> opened) override;
  void ReportRead(const store::StoredSession& stored, const absl::Status& status) const override;
  void Run(std::function<void()> work) override { bulk_.Run(std::move(work)); }

 private:
  RedisStore(const RedisStoreOptions& options,
             std::function<void(const store::StoreReport&)> report);

  void Leave(const std::string& id, const char* script);
  absl::Status CheckServer(std::vector<std::string>* warnings);
  absl::Status CommitCreate(const std::string& journal, const SnapshotParts& parts,
                            const RedisChange& change);
  absl::Status CommitSnapshot(store::JournalHead head, const SnapshotParts& parts,
                              RedisChange& change);
  absl::Status OpenStored(store::StoredSession& stored);

  const RedisStoreOptions options_;
  const std::function<void(const store::StoreReport&)> report_;
  RedisClient client_;
  RedisOwnership ownership_;
  OwnedSessions& sessions_;  // ownership_'s
  RedisLease& lease_;
  RedisWriter writer_;
  store::WorkThreads bulk_;
};

}  // namespace ovq::redis
