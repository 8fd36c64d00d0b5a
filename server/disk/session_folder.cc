#include "server/disk/session_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/files.h"
#include "base/status_macros.h"
#include "base/thread_name.h"

namespace ovq::disk {
namespace {

constexpr int kBulkThreads = 2;

// Keeps the first error of several.
void KeepFirstError(absl::Status& status, const absl::Status& other) {
  if (status.ok()) status = other;
}

// Removes the snapshot of a change that failed, unless the journal names it: it may be of the
// version that was there before.
void RemoveUnusedSnapshot(const SessionFiles& files, const std::string& id, uint64_t version) {
  const absl::StatusOr<store::Journal> journal = files.ReadJournal(id);
  const bool unused =
      journal.ok() ? journal->head.version != version : absl::IsNotFound(journal.status());
  // If this fails, the next start removes the file.
  if (unused) (void)RemoveFile(files.SnapshotPath(id, version));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionFolder>> SessionFolder::Open(SessionFolderOptions options,
                                                                   store::Report report) {
  RETURN_IF_ERROR(MakeFolder(options.path));
  const auto failed = [report](const absl::Status& status) {
    if (report) report({.kind = "read", .status = status});
  };
  ASSIGN_OR_RETURN(std::unique_ptr<FolderOwnership> ownership,
                   FolderOwnership::Open(options.path, options.ownership_timeout, failed));
  return std::unique_ptr<SessionFolder>(
      new SessionFolder(std::move(options), std::move(ownership), std::move(report)));
}

SessionFolder::SessionFolder(SessionFolderOptions options,
                             std::unique_ptr<FolderOwnership> ownership, store::Report report)
    : ThreadedStore(std::move(report), kBulkThreads, "disk"),
      options_(std::move(options)),
      files_(options_.path),
      ownership_(std::move(ownership)),
      synced_(SteadyClock::now()) {
  journal_thread_ = std::thread([this] { JournalLoop(); });
}

SessionFolder::~SessionFolder() {
  FinishWork();
  store::EndThread(journal_thread_, mutex_, changed_, ending_);
}

// --- Requests from any thread ---

void SessionFolder::Enqueue(Change change) {
  {
    std::lock_guard lock(mutex_);
    changes_.push_back(std::move(change));
  }
  changed_.notify_all();
}

void SessionFolder::WriteSnapshot(const store::JournalHead& head, const MakeSnapshot& make,
                                  Change& change) const {
  change.status = ownership_->CheckOwned(head.id);
  if (!change.status.ok()) return;
  change.snapshot = head.version;
  change.status = make([&](const std::vector<std::string_view>& parts) {
    for (const std::string_view part : parts) change.bytes += part.size();
    return WriteFileAtomically(files_.SnapshotPath(head.id, head.version), parts);
  });
}

absl::Status SessionFolder::WriteJournal(const std::string& id, const std::string& text,
                                         Change& change) const {
  change.bytes += text.size();
  change.names = true;
  return WriteFileAtomically(files_.JournalPath(id), {text});
}

void SessionFolder::Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
                           MakeSnapshot snapshot, Done done) {
  const auto begin = SteadyClock::now();
  auto create = [this, begin, head = std::move(head), entries = std::move(entries),
                 snapshot = std::move(snapshot), done = std::move(done)]() mutable {
    Change change{.kind = "create", .id = head.id, .begin = begin};
    change.done = std::move(done);
    change.status = ownership_->Lock(head.id);
    if (snapshot && change.status.ok()) {
      WriteSnapshot(head, snapshot, change);
    }
    head.snapshot_bytes = change.bytes;
    std::string text = store::EncodeHead(head);
    for (const store::JournalEntry& entry : entries) text += store::EncodeEntry(entry);
    change.write = [this, text = std::move(text)](Change& self) {
      return WriteJournal(self.id, text, self);
    };
    Enqueue(std::move(change));
  };
  if (!snapshot) return create();
  Run(std::move(create));
}

void SessionFolder::Append(const std::string& id, store::JournalEntry entry, Done done) {
  const auto write = [this, text = store::EncodeEntry(entry)](Change& change) -> absl::Status {
    ASSIGN_OR_RETURN(change.file, AppendToFile(files_.JournalPath(change.id), text));
    change.bytes = text.size();
    return absl::OkStatus();
  };
  Enqueue({.kind = "append",
           .id = id,
           .begin = SteadyClock::now(),
           .write = write,
           .done = std::move(done)});
}

void SessionFolder::Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) {
  const auto begin = SteadyClock::now();
  Run([this, begin, head = std::move(head), snapshot = std::move(snapshot),
       done = std::move(done)]() mutable {
    Change change{.kind = "snapshot", .id = head.id, .begin = begin};
    change.done = std::move(done);
    // One that is there stays: a crash between another file of its name and the journal that says
    // the bytes of that one would leave two that do not fit. What is new is the journal's head.
    const bool there = files_.HasSnapshot(head.id, head.version);
    if (!there) WriteSnapshot(head, snapshot, change);
    head.snapshot_bytes = change.bytes;
    change.write = [this, there, head = std::move(head)](Change& self) mutable -> absl::Status {
      const std::string file = files_.SnapshotPath(self.id, head.version);
      const absl::StatusOr<store::Journal> before = files_.ReadJournal(self.id);
      if (absl::IsNotFound(before.status())) return RemoveFile(file);
      RETURN_IF_ERROR(before.status());
      const uint64_t old = before->head.version;
      if (old > head.version) return RemoveFile(file);
      if (there) head.snapshot_bytes = before->head.snapshot_bytes;
      // Another change of this version may have failed since, and have removed it.
      if (head.version > 0 && access(file.c_str(), F_OK) != 0) return LastError(file);
      std::string text = store::EncodeHead(head);
      for (uint64_t k = 0; k < before->entries.size(); ++k) {
        if (old + k + 1 > head.version) text += store::EncodeEntry(before->entries[k]);
      }
      if (old > 0 && old != head.version) self.garbage = files_.SnapshotPath(self.id, old);
      return WriteJournal(self.id, text, self);
    };
    Enqueue(std::move(change));
  });
}

void SessionFolder::Remove(const std::string& id, Done done) {
  const auto write = [this](Change& change) -> absl::Status {
    const absl::StatusOr<store::Journal> journal = files_.ReadJournal(change.id);
    if (journal.ok() && journal->head.version > 0) {
      change.garbage = files_.SnapshotPath(change.id, journal->head.version);
    }
    change.names = true;
    RETURN_IF_ERROR(RemoveFile(files_.JournalPath(change.id)));
    return RemoveFile(files_.TextPath(change.id));
  };
  Enqueue({.kind = "remove",
           .id = id,
           .begin = SteadyClock::now(),
           .write = write,
           .done = std::move(done),
           .ends = true});
}

void SessionFolder::PutText(const std::string& id, std::shared_ptr<const std::string> text,
                            Done done) {
  Run([this, begin = SteadyClock::now(), number = texts_.Begin(id), id, text = std::move(text),
       done = std::move(done)] {
    Change change{.kind = "text", .id = id, .begin = begin, .done = done, .text = number};
    change.bytes = text->size();
    change.status = ownership_->CheckOwned(id);
    if (change.status.ok()) change.status = files_.WriteNewText(id, number, *text);
    change.write = [this](Change& self) {
      self.names = true;
      const bool gone = access(files_.JournalPath(self.id).c_str(), F_OK) != 0 && errno == ENOENT;
      const std::string file = files_.NewTextPath(self.id, self.text);
      return gone ? RemoveFile(file) : RenameFile(file, files_.TextPath(self.id));
    };
    Enqueue(std::move(change));
  });
}

void SessionFolder::RemoveText(const std::string& id) {
  const auto write = [this](Change& change) { return RemoveFile(files_.TextPath(change.id)); };
  Enqueue({.kind = "text",
           .id = id,
           .begin = SteadyClock::now(),
           .write = write,
           .text = texts_.Begin(id)});
}

absl::Status SessionFolder::OpenStored(store::StoredSession& stored) {
  absl::Status status;
  // Retries, because a new snapshot may replace the files, and with it the journal, meanwhile.
  for (int attempt = 0; attempt < 3; ++attempt) {
    ASSIGN_OR_RETURN(stored.journal, files_.ReadJournal(stored.id));
    const uint64_t version = stored.journal.head.version;
    if (version == 0) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<SnapshotFile>> file =
        SnapshotFile::Open(files_.SnapshotPath(stored.id, version));
    status = file.status();
    if (status.ok()) stored.snapshot = *std::move(file);
    if (!absl::IsNotFound(status)) break;
  }
  return status;
}

// --- Threads ---

void SessionFolder::JournalLoop() {
  NameThisThread("journal");
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [this] { return !changes_.empty() || ending_; };
    if (unsynced_.empty()) {
      changed_.wait(lock, ready);
    } else {
      changed_.wait_until(lock, synced_ + absl::ToChronoNanoseconds(options_.sync_interval), ready);
    }
    std::vector<Change> changes = std::exchange(changes_, {});
    const bool over = changes.empty() && ready();
    lock.unlock();
    CommitChanges(changes);
    SyncLater(over);
    if (over) return;
    lock.lock();
  }
}

// Writes and syncs all queued changes together.
void SessionFolder::CommitChanges(std::vector<Change>& changes) {
  bool names = false;
  for (Change& change : changes) {
    const bool outdated = change.text > 0 && !texts_.End(change.id, change.text);
    if (change.status.ok()) change.status = ownership_->CheckOwned(change.id);
    if (change.status.ok() && !outdated) change.status = change.write(change);
    if ((outdated || !change.status.ok()) && ownership_->CheckOwned(change.id).ok()) {
      if (change.text > 0) (void)RemoveFile(files_.NewTextPath(change.id, change.text));
      if (change.snapshot) RemoveUnusedSnapshot(files_, change.id, *change.snapshot);
    }
    names |= change.names;
  }
  for (Change& change : changes) {
    const OpenFile file = std::move(change.file);
    if (file.fd() < 0) continue;
    const std::string path = files_.JournalPath(change.id);
    if (!options_.sync_always) {
      unsynced_.insert(path);
    } else if (fdatasync(file.fd()) != 0) {
      KeepFirstError(change.status, LastError(path));
    }
  }
  const absl::Status synced = names ? SyncFolder(options_.path) : absl::OkStatus();
  for (Change& change : changes) {
    if (change.names) KeepFirstError(change.status, synced);
    // If this fails, the next start removes the file.
    if (change.status.ok() && !change.garbage.empty()) (void)RemoveFile(change.garbage);
    if (change.ends) ownership_->Release(change.id);
    store::FinishChange(report_, change);
  }
}

void SessionFolder::SyncLater(bool all) {
  const auto now = SteadyClock::now();
  if (unsynced_.empty()) {
    synced_ = now;
    return;
  }
  if (!all && now - synced_ < absl::ToChronoNanoseconds(options_.sync_interval)) return;
  for (const std::string& path : std::exchange(unsynced_, {})) {
    const absl::StatusOr<OpenFile> file = OpenFile::Open(path, O_WRONLY);
    if (!file.ok()) continue;  // removed, or replaced by a file that is synced
    if (fdatasync(file->fd()) != 0 && report_) {
      report_({.kind = "append", .status = LastError(path)});
    }
  }
  synced_ = SteadyClock::now();
}

}  // namespace ovq::disk
