// A session store that passes everything on to another one, for tests that change some of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/session_store.h"

namespace ovq::engine::test {

class DelegatingStore : public store::SessionStore {
 public:
  explicit DelegatingStore(std::unique_ptr<store::SessionStore> store) : store_(std::move(store)) {}

  absl::StatusOr<store::RecoveredSessions> Recover() override { return store_->Recover(); }
  void Acquire(const std::string& id, Acquired done) override {
    store_->Acquire(id, std::move(done));
  }
  void SetListener(store::OwnershipListener listener) override {
    store_->SetListener(std::move(listener));
  }
  void Release(const std::string& id) override { store_->Release(id); }
  void Decline(const std::string& id) override { store_->Decline(id); }
  void Quarantine(const std::string& id) override { store_->Quarantine(id); }
  size_t owned() const override { return store_->owned(); }
  bool sure_of_ownership() const override { return store_->sure_of_ownership(); }
  void ConfirmOwnership(Done done) override { store_->ConfirmOwnership(std::move(done)); }
  void Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
              MakeSnapshot snapshot, Done done) override {
    store_->Create(std::move(head), std::move(entries), std::move(snapshot), std::move(done));
  }
  void Append(const std::string& id, store::JournalEntry entry, Done done) override {
    store_->Append(id, std::move(entry), std::move(done));
  }
  void Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) override {
    store_->Snapshot(std::move(head), std::move(snapshot), std::move(done));
  }
  void Remove(const std::string& id, Done done) override { store_->Remove(id, std::move(done)); }
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override {
    store_->PutText(id, std::move(text), std::move(done));
  }
  void RemoveText(const std::string& id) override { store_->RemoveText(id); }
  void ReadText(const std::string& id,
                std::function<void(absl::StatusOr<std::string>)> done) override {
    store_->ReadText(id, std::move(done));
  }
  void Read(const std::string& id,
            std::function<void(absl::StatusOr<store::StoredSession>)> opened) override {
    store_->Read(id, std::move(opened));
  }
  void ReportRead(const store::StoredSession& stored, const absl::Status& status) const override {
    store_->ReportRead(stored, status);
  }
  void Run(std::function<void()> work) override { store_->Run(std::move(work)); }

 private:
  const std::unique_ptr<store::SessionStore> store_;
};

}  // namespace ovq::engine::test
