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
#include "server/store/threaded_store.h"

namespace ovq::redis {

class RedisStore final : public store::ThreadedStore {
 public:
  // Connects, and checks that Redis is one that keeps what it is given. Errors name the address.
  // `report` is called on the store's threads. warnings: what people should know of this Redis.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Open(
      RedisStoreOptions options, store::Report report = {},
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

 private:
  RedisStore(const RedisStoreOptions& options, store::Report report);

  void Leave(const std::string& id, const char* script);
  absl::Status CheckServer(std::vector<std::string>* warnings);
  absl::Status CommitCreate(const std::string& journal, const SnapshotParts& parts,
                            const RedisChange& change);
  absl::Status CommitSnapshot(store::JournalHead head, const SnapshotParts& parts,
                              RedisChange& change);
  absl::StatusOr<std::string> FetchText(const std::string& id, SteadyTime begin) override;
  absl::Status OpenStored(store::StoredSession& stored) override;

  const RedisStoreOptions options_;
  RedisClient client_;
  RedisOwnership ownership_;
  OwnedSessions& sessions_;  // ownership_'s
  RedisLease& lease_;
  RedisWriter writer_;
};

}  // namespace ovq::redis
