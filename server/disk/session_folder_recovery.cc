// What of the SessionFolder finds the sessions that were there before.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "server/disk/durable_files.h"
#include "server/disk/session_folder.h"

namespace ovq {

absl::StatusOr<FoundSession> SessionFolder::Look(const std::string& id) const {
  const std::string path = JournalPath(id);
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxFileBytes);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<Journal> journal = DecodeJournal(*bytes);
  if (!journal.ok()) return journal.status();
  const JournalHead& head = journal->head;
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
  if (journal->good_bytes < bytes->size() &&
      truncate(path.c_str(), static_cast<off_t>(journal->good_bytes)) != 0) {
    return LastError(path);
  }
  return FoundSession{head, journal->version(), journal->mark()};
}

absl::StatusOr<SessionFolder::Found> SessionFolder::Recover() {
  constexpr int kThreads = 4;
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(options_.path);
  if (!names.ok()) return names.status();
  std::vector<std::string> ids;
  for (const std::string& name : *names) {
    if (name.ends_with(kJournalEnd)) {
      ids.push_back(name.substr(0, name.size() - std::string_view(kJournalEnd).size()));
    }
  }
  std::vector<absl::StatusOr<FoundSession>> looks(ids.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (size_t k = next++; k < ids.size(); k = next++) looks[k] = Look(ids[k]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Found found;
  std::set<std::string> needed;
  for (size_t k = 0; k < ids.size(); ++k) {
    if (looks[k].ok()) {
      const FoundSession& session = *looks[k];
      if (session.head.version > 0) needed.insert(SnapshotPath(ids[k], session.head.version));
      found.sessions.push_back(*std::move(looks[k]));
    } else {
      found.damaged.push_back(absl::StrCat(ids[k], ": ", looks[k].status().message()));
      SetAside(ids[k]);
    }
  }
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(options_.path, "/", name);
    const bool left_over = name.ends_with(".part") || name.ends_with(kSnapshotEnd);
    if (!left_over || needed.contains(path)) continue;
    if (absl::Status status = RemoveFile(path); !status.ok()) return status;
  }
  return found;
}

void SessionFolder::SetAside(const std::string& id) {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(options_.path);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name != id + kJournalEnd && !(name.starts_with(id + "-") && name.ends_with(kSnapshotEnd))) {
      continue;
    }
    // What cannot be moved is found again by the next start.
    (void)rename(absl::StrCat(options_.path, "/", name).c_str(),
                 absl::StrCat(options_.path, "/damaged/", name).c_str());
  }
}

}  // namespace ovq
