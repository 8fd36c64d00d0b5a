// Sessions on disk: for each a journal, and the snapshot of its state that the journal goes on
// from. A session's files fit each other at any moment, wherever a crash or a full disk stops the
// work. Several servers may use one folder: each session belongs to one of them, or to none.
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
#include "server/disk/journal.h"
#include "server/disk/session_locks.h"
#include "server/disk/snapshot_file.h"
#include "server/disk/transfer_requests.h"

namespace ovq {

// What the disk has done.
struct DiskReport {
  const char* kind;  // "append", "create", "snapshot", "remove", "read"
  uint64_t bytes = 0;
  absl::Duration duration = absl::ZeroDuration();  // from being asked for to being told
  absl::Status status = {};
};

struct SessionFolderOptions {
  std::string path = {};
  // A change is told once it is on the disk itself; else once the system has it, which has it on
  // the disk within sync_interval: it then survives the end of the process, but not of the machine.
  bool sync_always = true;
  absl::Duration sync_interval = absl::Seconds(1);
  absl::Duration ownership_timeout = absl::Seconds(5);  // for another server to answer
};

// A session that was here before.
struct FoundSession {
  JournalHead head;
  uint64_t version = 0;
  SessionMark mark;
};

// Any thread; what is asked for is done in the order of asking, session by session. Callbacks run
// on a thread of the folder's, and may ask for more.
class SessionFolder {
 public:
  using Done = std::function<void(absl::Status)>;
  // Makes a file's parts on a thread of the folder's, and returns what writing them did.
  using WriteParts = std::function<absl::Status(const std::vector<std::string_view>& parts)>;
  using MakeFile = std::function<absl::Status(const WriteParts& write)>;
  // A session's files, to be read on.
  struct StoredSession {
    std::string id;
    std::chrono::steady_clock::time_point begin;
    Journal journal;
    std::unique_ptr<SnapshotFile> snapshot;  // null for version 0

    uint64_t bytes() const {
      return journal.good_bytes + (snapshot == nullptr ? 0 : snapshot->bytes());
    }
  };
  struct RecoveredSessions {
    std::vector<FoundSession> sessions;  // by id
    std::vector<std::string> damaged;    // what is wrong with those that are now under damaged/
    size_t elsewhere = 0;                // sessions that other servers have
  };
  using OwnershipCallback = std::function<void(absl::StatusOr<FoundSession>)>;

  // Makes the folder if it is missing. Errors name the path. `report` is called on the folder's
  // threads.
  static absl::StatusOr<std::unique_ptr<SessionFolder>> Open(
      SessionFolderOptions options, std::function<void(const DiskReport&)> report = {});
  ~SessionFolder();  // does first what was asked for

  // Once, before anything else: takes the sessions that no server has. What is damaged is moved to
  // damaged/, what belongs to no session goes.
  absl::StatusOr<RecoveredSessions> Recover();

  // Takes a session; asks the server that has it, if one has. NotFound; FailedPrecondition if it is
  // in use, here or there; Unavailable if the other one does not answer; DataLoss,
  // and it is in damaged/. All name the session.
  void AcquireOwnership(const std::string& id, OwnershipCallback done);
  // What others ask for is told from then on: ReleaseOwnership or DeclineTransfer answers; with
  // neither they ask again.
  void SetTransferListener(std::function<void(const std::string& id)> asked);
  void ReleaseOwnership(const std::string& id);  // nothing of it is on its way: others may take it
  void DeclineTransfer(const std::string& id);   // it is in use

  // What follows is about sessions that this server has.

  // A new session: empty before the entries, or with a snapshot (head.version > 0).
  void Create(JournalHead head, std::vector<JournalEntry> entries, MakeFile snapshot, Done done);
  // After an error the session is on disk as it was before, and needs a Snapshot to go on.
  void Append(const std::string& id, JournalEntry entry, Done done);
  // In place of the one before. head.version: the changes that the snapshot has; the journal goes
  // on with those after it. Of a session that was removed meanwhile: nothing, which is no error.
  void Snapshot(JournalHead head, MakeFile snapshot, Done done);
  void Remove(const std::string& id, Done done);
  // Opens its files. `opened` reads on, and so may what it gives to Run; ReportRead says how that
  // went.
  void Read(const std::string& id, std::function<void(absl::StatusOr<StoredSession>)> opened);
  void ReportRead(const StoredSession& stored, const absl::Status& status) const;
  void Run(std::function<void()> work);  // on a thread of the folder's
  // Into damaged/, with whatever else was asked for it before: it is nobody's then.
  void Quarantine(const std::string& id);

  const std::string& path() const { return options_.path; }

  // Of a session file, and of a journal.
  static constexpr size_t kMaxFileBytes = size_t{1} << 40;
  static constexpr const char* kJournalEnd = ".journal";
  static constexpr const char* kSnapshotEnd = ".session";

 private:
  // A change of a journal: work that writes, then, with the changes of others, their way to the
  // disk, then what may only follow that.
  struct Change {
    const char* kind;
    std::string id;
    std::chrono::steady_clock::time_point begin;
    std::function<absl::Status(Change&)> write = {};
    Done done = {};
    uint64_t bytes = 0;
    absl::Status status = {};
    int fd = -1;               // to be synced
    bool names = false;        // of files have changed
    std::string garbage = {};  // a file that nothing needs from then on
    bool ends = false;         // the session, which nobody has from then on
  };
  // A session that this server is to have.
  struct Acquisition {
    std::string id;
    std::chrono::steady_clock::time_point begin;
    OwnershipCallback done;
    std::chrono::steady_clock::time_point asked = {};  // another server, at last
  };

  SessionFolder(SessionFolderOptions options, std::unique_ptr<SessionLocks> locks,
                std::unique_ptr<TransferRequests> asks,
                std::function<void(const DiskReport&)> report);

  std::string JournalPath(const std::string& id) const;
  std::string SnapshotPath(const std::string& id, uint64_t version) const;
  absl::StatusOr<FoundSession> CheckFiles(const std::string& id) const;
  // NotFound; AlreadyExists and Unavailable as SessionLocks has them; else it is in damaged/.
  absl::StatusOr<FoundSession> TryAcquireOwnership(const std::string& id);
  absl::Status RemoveLeftovers(const std::vector<std::string>& names,
                               const std::set<std::string>& taken,
                               const std::set<std::string>& needed);

  void Enqueue(Change change);
  void WriteSnapshot(const JournalHead& head, const MakeFile& make, uint64_t& bytes,
                     absl::Status& status) const;
  absl::Status WriteJournal(const std::string& id, const std::string& text, Change& change) const;
  void JournalLoop();
  void BulkLoop();
  void TransferLoop();
  bool TryFinish(Acquisition& call, bool ending);  // if it can be
  void CommitChanges(std::vector<Change>& changes);
  void SyncLater(bool all);
  void ReportChange(Change& change) const;

  const SessionFolderOptions options_;
  const std::unique_ptr<SessionLocks> locks_;
  const std::unique_ptr<TransferRequests> transfer_requests_;
  const std::function<void(const DiskReport&)> report_;

  std::mutex mutex_;  // guards down to transfer_listener_
  std::condition_variable changed_;
  bool ending_ = false;
  int bulk_running_ = 0;
  std::vector<Change> changes_;
  std::deque<std::function<void()>> bulk_;
  std::vector<Acquisition> acquisitions_;
  std::function<void(const std::string&)> transfer_listener_;

  std::set<std::string> unsynced_;  // paths; of the journals' thread
  std::chrono::steady_clock::time_point synced_;
  std::vector<std::thread> bulk_threads_;
  std::thread journal_thread_;
  std::thread transfer_thread_;
};

}  // namespace ovq
