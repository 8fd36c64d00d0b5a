// SessionFolder's recovery: finds the sessions of earlier processes and removes what crashes left
// behind.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "server/disk/durable_files.h"
#include "server/disk/session_folder.h"

namespace ovq {
namespace {

// Returns the id of the session whose snapshot or half-written file this is; empty for other files.
std::string LeftoverSessionId(const std::string& name) {
  absl::string_view id = name;
  const bool half = absl::ConsumeSuffix(&id, ".part");
  if (absl::ConsumeSuffix(&id, SessionFolder::kSnapshotEnd)) {
    return std::string(id.substr(0, id.rfind('-')));
  }
  const bool journal = absl::ConsumeSuffix(&id, SessionFolder::kJournalEnd);
  return half && journal ? std::string(id) : "";
}

}  // namespace

absl::StatusOr<FoundSession> SessionFolder::CheckFiles(const std::string& id) const {
  const std::string path = JournalPath(id);
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(const Journal journal, DecodeJournal(bytes));
  const JournalHead& head = journal.head;
  if (head.id != id) {
    return absl::DataLossError(absl::StrCat("journal: of the session ", head.id));
  }
  if (head.version > 0) {
    const std::string snapshot = SnapshotPath(id, head.version);
    struct stat found = {};
    if (stat(snapshot.c_str(), &found) != 0) return LastError(snapshot);
    if (static_cast<uint64_t>(found.st_size) != head.snapshot_bytes) {
      return absl::DataLossError(
          absl::StrCat(snapshot, ": ", found.st_size, " bytes, expected ", head.snapshot_bytes));
    }
  }
  if (journal.good_bytes < bytes.size() &&
      truncate(path.c_str(), static_cast<off_t>(journal.good_bytes)) != 0) {
    return LastError(path);
  }
  return FoundSession{head, journal.version(), journal.mark()};
}

absl::StatusOr<FoundSession> SessionFolder::TryAcquireOwnership(const std::string& id) {
  const std::string journal = JournalPath(id);
  const auto gone = [&] { return access(journal.c_str(), F_OK) != 0 && errno == ENOENT; };
  const absl::Status not_found = absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
  if (gone()) return not_found;
  RETURN_IF_ERROR(locks_->Lock(id));
  absl::StatusOr<FoundSession> found = CheckFiles(id);
  if (found.ok()) return found;
  if (gone()) {  // the session was deleted by a server that owned it meanwhile
    locks_->Unlock(id);
    return not_found;
  }
  const absl::Status damaged = absl::DataLossError(
      absl::StrCat("session ", id, ": its files: ", std::string(found.status().message()),
                   "; they are now in ", options_.path, "/damaged"));
  Quarantine(id);
  if (report_) report_({.kind = "read", .status = damaged});
  return damaged;
}

absl::StatusOr<SessionFolder::RecoveredSessions> SessionFolder::Recover() {
  constexpr int kThreads = 4;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFileNames(options_.path));
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    if (name.ends_with(kJournalEnd)) {
      ids.push_back(name.substr(0, name.size() - std::string_view(kJournalEnd).size()));
    }
  }
  std::vector<absl::StatusOr<FoundSession>> takes(ids.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (size_t k = next++; k < ids.size(); k = next++) takes[k] = TryAcquireOwnership(ids[k]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  RecoveredSessions found;
  std::set<std::string> taken, needed;
  for (size_t k = 0; k < ids.size(); ++k) {
    if (takes[k].ok()) {
      const FoundSession& session = *takes[k];
      taken.insert(ids[k]);
      if (session.head.version > 0) needed.insert(SnapshotPath(ids[k], session.head.version));
      found.sessions.push_back(*std::move(takes[k]));
    } else if (absl::IsUnavailable(takes[k].status())) {
      ++found.elsewhere;
    } else if (!absl::IsNotFound(takes[k].status())) {
      found.damaged.emplace_back(takes[k].status().message());
    }
  }
  const absl::Status status = RemoveLeftovers(names, taken, needed);
  if (!status.ok()) return status;
  return found;
}

// Removes files that a crash left behind, of this server's sessions and of sessions without a
// journal.
absl::Status SessionFolder::RemoveLeftovers(const std::vector<std::string>& names,
                                            const std::set<std::string>& taken,
                                            const std::set<std::string>& needed) {
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(options_.path, "/", name);
    const std::string id = LeftoverSessionId(name);
    if (id.empty() || needed.contains(path)) continue;
    const bool ours = taken.contains(id);
    if (!ours && !locks_->Lock(id).ok()) continue;
    absl::Status status;
    if (ours || access(JournalPath(id).c_str(), F_OK) != 0) status = RemoveFile(path);
    if (!ours) locks_->Unlock(id);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void SessionFolder::Quarantine(const std::string& id) {
  const absl::StatusOr<std::vector<std::string>> names = ListFileNames(options_.path);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name != id + kJournalEnd && !(name.starts_with(id + "-") && name.ends_with(kSnapshotEnd))) {
      continue;
    }
    // If the move fails, the next start finds the file again.
    (void)rename(absl::StrCat(options_.path, "/", name).c_str(),
                 absl::StrCat(options_.path, "/damaged/", name).c_str());
  }
  locks_->Unlock(id);
}

}  // namespace ovq
