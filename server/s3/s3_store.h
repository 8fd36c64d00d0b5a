// Defines S3Store, the store of sessions that is a bucket of an S3-compatible object store, which
// servers on several machines share (docs/session-format.md, "Sessions in an object store").
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/s3/s3_client.h"
#include "server/s3/s3_options.h"
#include "server/s3/s3_ownership.h"
#include "server/s3/s3_snapshot.h"
#include "server/s3/s3_writer.h"
#include "server/store/threaded_store.h"

namespace ovq::s3 {

class S3Store final : public store::ThreadedStore {
 public:
  // Checks that the object store keeps preconditions, and acquires a lease. Errors name the
  // address. `report` is called on the store's threads.
  static absl::StatusOr<std::unique_ptr<S3Store>> Open(S3StoreOptions options,
                                                       store::Report report = {});
  ~S3Store() override;

  absl::StatusOr<store::RecoveredSessions> Recover() override { return ownership_.Recover(); }
  void Acquire(const std::string& id, Acquired done) override {
    ownership_.Acquire(id, std::move(done));
  }
  void SetListener(store::OwnershipListener listener) override {
    ownership_.SetListener(std::move(listener));
  }
  void Release(const std::string& id) override { StopOwning(id, Leave::kRelease); }
  void Decline(const std::string& id) override;
  void Quarantine(const std::string& id) override { StopOwning(id, Leave::kQuarantine); }
  size_t owned() const override { return sessions_.size(); }
  bool sure_of_ownership() const override { return ownership_.sure(); }
  void ConfirmOwnership(Done done) override { ownership_.Confirm(std::move(done)); }

  void Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
              MakeSnapshot snapshot, Done done) override;
  void Append(const std::string& id, store::JournalEntry entry, Done done) override;
  void Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) override;
  void Remove(const std::string& id, Done done) override;
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override;
  void RemoveText(const std::string& id) override;

 private:
  S3Store(const S3StoreOptions& options, store::Report report);

  S3Change NewChange(const char* kind, const std::string& id, Done done = {}) const;
  void StopOwning(const std::string& id, Leave how);
  absl::Status CommitCreate(const std::string& journal, const SnapshotParts& parts,
                            const S3Change& change, uint64_t& epoch);
  absl::Status CommitSnapshot(store::JournalHead head, const SnapshotParts& parts,
                              S3Change& change);
  absl::Status CommitText(const std::string& name, uint64_t bytes, const S3Change& change);
  absl::StatusOr<std::string> FetchText(const std::string& id, SteadyTime begin) override;
  absl::Status OpenStored(store::StoredSession& stored) override;

  const S3StoreOptions options_;
  S3Client client_;
  S3Ownership ownership_;
  OwnedSessions& sessions_;  // ownership_'s
  S3Writer writer_;
};

}  // namespace ovq::s3
