// Stores sessions on disk: for each a journal, and a snapshot of its state from which the journal
// continues. A session's files are consistent at any moment, wherever a crash or a full disk
// interrupts a write. Several servers may share a folder: at most one of them owns each session.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/disk/folder_ownership.h"
#include "server/disk/journal.h"
#include "server/disk/session_files.h"
#include "server/disk/snapshot_file.h"

namespace ovq::disk {

// Reports one finished disk operation.
struct DiskReport {
  const char* kind;  // "append", "create", "snapshot", "remove", "read", "text"
  uint64_t bytes = 0;
  absl::Duration duration = absl::ZeroDuration();  // from the request to its callback
  absl::Status status = {};
};

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

// Thread-safe. Operations on one session run in the order of their calls. Callbacks run on the
// folder's threads and may call its methods.
class SessionFolder {
 public:
  using Done = std::function<void(absl::Status)>;
  // A MakeFile passes the parts of a file to `write`, on one of the folder's threads, and returns
  // the status of the write.
  using WriteParts = std::function<absl::Status(const std::vector<std::string_view>& parts)>;
  using MakeFile = std::function<absl::Status(const WriteParts& write)>;
  // A session's opened files, ready to be read.
  struct StoredSession {
    std::string id;
    std::chrono::steady_clock::time_point begin;
    Journal journal;
    std::unique_ptr<SnapshotFile> snapshot;  // null for version 0

    uint64_t bytes() const {
      return journal.good_bytes + (snapshot == nullptr ? 0 : snapshot->bytes());
    }
  };

  // Opens the folder; creates it if it is missing. Errors name the path. `report` is called on the
  // folder's threads.
  static absl::StatusOr<std::unique_ptr<SessionFolder>> Open(
      SessionFolderOptions options, std::function<void(const DiskReport&)> report = {});
  ~SessionFolder();  // finishes pending operations first

  FolderOwnership& ownership() { return *ownership_; }

  // Methods with an id or a head need a session that this server owns.

  // Stores a new session: empty before the entries, or with a snapshot (head.version > 0).
  void Create(JournalHead head, std::vector<JournalEntry> entries, MakeFile snapshot, Done done);
  // Adds an entry to the session's journal. After an error the session is on disk as it was before,
  // and needs a Snapshot before the next Append.
  void Append(const std::string& id, JournalEntry entry, Done done);
  // Replaces the snapshot and the journal. head.version is the number of changes that the snapshot
  // includes; the journal continues after them. OK without effect if the session was removed
  // meanwhile.
  void Snapshot(JournalHead head, MakeFile snapshot, Done done);
  void Remove(const std::string& id, Done done);
  // Gives the session a text, or another one; it ends with the session. OK without effect if the
  // session was removed meanwhile.
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done);
  void RemoveText(const std::string& id);
  // NotFound without a text, DataLoss for a damaged one.
  void ReadText(const std::string& id, std::function<void(absl::StatusOr<std::string>)> done);
  // Opens a session's files. `opened` and work that it passes to Run read them; ReportRead then
  // reports the result.
  void Read(const std::string& id, std::function<void(absl::StatusOr<StoredSession>)> opened);
  void ReportRead(const StoredSession& stored, const absl::Status& status) const;
  void Run(std::function<void()> work);  // on one of the folder's threads

  const std::string& path() const { return files_.path(); }

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
    bool ends = false;           // the session ends: its lock is released after the sync
  };

  SessionFolder(SessionFolderOptions options, std::unique_ptr<FolderOwnership> ownership,
                std::function<void(const DiskReport&)> report);

  void Enqueue(Change change);
  void WriteSnapshot(const JournalHead& head, const MakeFile& make, uint64_t& bytes,
                     absl::Status& status) const;
  absl::Status WriteJournal(const std::string& id, const std::string& text, Change& change) const;
  void JournalLoop();
  void BulkLoop();
  void CommitChanges(std::vector<Change>& changes);
  void SyncLater(bool all);
  void ReportChange(Change& change) const;

  const SessionFolderOptions options_;
  const std::function<void(const DiskReport&)> report_;
  const SessionFiles files_;
  const std::unique_ptr<FolderOwnership> ownership_;

  std::mutex mutex_;  // guards the members up to bulk_
  std::condition_variable changed_;
  bool ending_ = false;
  int bulk_running_ = 0;
  std::vector<Change> changes_;
  std::deque<std::function<void()>> bulk_;

  std::set<std::string> unsynced_;  // paths; used by the journal thread only
  std::chrono::steady_clock::time_point synced_;
  std::vector<std::thread> bulk_threads_;
  std::thread journal_thread_;
};

}  // namespace ovq::disk
