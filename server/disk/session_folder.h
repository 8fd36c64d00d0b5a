// Defines SessionFolder, the store of sessions that is a folder of this machine.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/disk/folder_ownership.h"
#include "server/disk/session_files.h"
#include "server/disk/snapshot_file.h"
#include "server/disk/text_order.h"
#include "server/store/threaded_store.h"

namespace ovq::disk {

struct SessionFolderOptions {
  std::string path = {};
  // If set, a change is reported as done once it is synced to the disk. Otherwise it is reported
  // once the operating system has it, and is synced within sync_interval: such a change survives
  // the end of the process, but not of the machine.
  bool sync_always = true;
  absl::Duration sync_interval = absl::Seconds(1);
  absl::Duration ownership_timeout = absl::Seconds(5);  // time for another server to release a
                                                        // session
};

class SessionFolder final : public store::ThreadedStore {
 public:
  // Opens the folder; creates it if it is missing. Errors name the path. `report` is called on the
  // folder's threads.
  static absl::StatusOr<std::unique_ptr<SessionFolder>> Open(SessionFolderOptions options,
                                                             store::Report report = {});
  ~SessionFolder() override;

  absl::StatusOr<store::RecoveredSessions> Recover() override { return ownership_->Recover(); }
  void Acquire(const std::string& id, Acquired done) override {
    ownership_->Acquire(id, std::move(done));
  }
  void SetListener(store::OwnershipListener listener) override {
    ownership_->SetListener(std::move(listener.asked));  // a lock is not lost while its owner lives
  }
  void Release(const std::string& id) override { ownership_->Release(id); }
  void Decline(const std::string& id) override { ownership_->Decline(id); }
  void Quarantine(const std::string& id) override { ownership_->Quarantine(id); }
  size_t owned() const override { return ownership_->owned(); }
  // A lock is held until this process ends.
  bool sure_of_ownership() const override { return true; }
  void ConfirmOwnership(Done done) override { done(absl::OkStatus()); }

  void Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
              MakeSnapshot snapshot, Done done) override;
  void Append(const std::string& id, store::JournalEntry entry, Done done) override;
  void Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) override;
  void Remove(const std::string& id, Done done) override;
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override;
  void RemoveText(const std::string& id) override;

 private:
  // A change of a session's files. CommitChanges calls `write`, syncs the changes of all sessions
  // together, and then does what must come after the sync.
  struct Change {
    const char* kind;
    std::string id;
    std::chrono::steady_clock::time_point begin;
    std::function<absl::Status(Change&)> write = {};
    Done done = {};
    uint64_t bytes = 0;
    absl::Status status = {};
    OpenFile file = OpenFile();  // to sync
    bool names = false;          // file names have changed, so the folder must be synced
    std::string garbage = {};    // file to delete after the sync
    // The version of the snapshot that was written for it, and that goes if the change fails.
    std::optional<uint64_t> snapshot = {};
    uint64_t text = 0;  // TextOrder's number of a change of the text
    bool ends = false;  // the session ends: its lock is released after the sync
  };

  SessionFolder(SessionFolderOptions options, std::unique_ptr<FolderOwnership> ownership,
                store::Report report);

  void Enqueue(Change change);
  void WriteSnapshot(const store::JournalHead& head, const MakeSnapshot& make,
                     Change& change) const;
  absl::Status WriteJournal(const std::string& id, const std::string& text, Change& change) const;
  void JournalLoop();
  void CommitChanges(std::vector<Change>& changes);
  void SyncLater(bool all);
  absl::StatusOr<std::string> FetchText(const std::string& id, SteadyTime) override {
    return files_.ReadText(id);
  }
  absl::Status OpenStored(store::StoredSession& stored) override;

  const SessionFolderOptions options_;
  const SessionFiles files_;
  const std::unique_ptr<FolderOwnership> ownership_;
  TextOrder texts_;

  std::mutex mutex_;  // guards the members up to changes_
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<Change> changes_;

  std::set<std::string> unsynced_;  // paths; used by the journal thread only
  std::chrono::steady_clock::time_point synced_;
  std::thread journal_thread_;
};

}  // namespace ovq::disk
