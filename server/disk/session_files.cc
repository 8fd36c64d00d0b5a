#include "server/disk/session_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "server/disk/durable_files.h"
#include "server/store/stored_text.h"

namespace ovq::disk {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 40;  // of a file that is read whole

// Whether the file's name is that of a snapshot of the session, and not of one whose id begins
// alike.
bool NamesSnapshot(const std::string& id, absl::string_view name) {
  const bool framed = absl::ConsumePrefix(&name, id + "-") &&
                      absl::ConsumeSuffix(&name, SessionFiles::kSnapshotEnd);
  return framed && name.find_first_not_of("0123456789") == absl::string_view::npos;
}

}  // namespace

std::string SessionFiles::JournalPath(const std::string& id) const {
  return absl::StrCat(path_, "/", id, kJournalEnd);
}

std::string SessionFiles::SnapshotPath(const std::string& id, uint64_t version) const {
  return absl::StrCat(path_, "/", id, "-", version, kSnapshotEnd);
}

std::string SessionFiles::TextPath(const std::string& id) const {
  return absl::StrCat(path_, "/", id, kTextEnd);
}

std::string SessionFiles::NewTextPath(const std::string& id, uint64_t number) const {
  return absl::StrCat(TextPath(id), ".", number);
}

absl::Status SessionFiles::WriteNewText(const std::string& id, uint64_t number,
                                        std::string_view text) const {
  return WriteFileAtomically(NewTextPath(id, number), {store::EncodeText(text)});
}

absl::StatusOr<std::string> SessionFiles::ReadText(const std::string& id) const {
  const std::string path = TextPath(id);
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxBytes));
  return store::DecodeText(bytes, path);
}

absl::StatusOr<store::Journal> SessionFiles::ReadJournal(const std::string& id) const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile(JournalPath(id), kMaxBytes));
  return store::DecodeJournal(bytes);
}

absl::StatusOr<store::FoundSession> SessionFiles::Check(const std::string& id) const {
  ASSIGN_OR_RETURN(const store::Journal journal, ReadJournal(id));
  const store::JournalHead& head = journal.head;
  if (head.id != id) {
    return absl::DataLossError(absl::StrCat("journal: of the session ", head.id));
  }
  if (head.version > 0) {
    const std::string snapshot = SnapshotPath(id, head.version);
    struct stat found = {};
    if (stat(snapshot.c_str(), &found) != 0) {
      const absl::Status status = LastError(snapshot);
      return absl::IsNotFound(status) ? absl::DataLossError(status.message()) : status;
    }
    if (static_cast<uint64_t>(found.st_size) != head.snapshot_bytes) {
      return absl::DataLossError(
          absl::StrCat(snapshot, ": ", found.st_size, " bytes, expected ", head.snapshot_bytes));
    }
  }
  const std::string path = JournalPath(id);
  if (journal.torn_bytes > 0 &&
      truncate(path.c_str(), static_cast<off_t>(journal.good_bytes)) != 0) {
    return LastError(path);
  }
  struct stat text = {};
  const bool has_text = stat(TextPath(id).c_str(), &text) == 0;
  return store::FoundSession{.head = head,
                             .version = journal.version(),
                             .mark = journal.mark(),
                             .text_bytes = has_text ? static_cast<size_t>(text.st_size) : 0,
                             .journal_bytes = journal.good_bytes};
}

bool SessionFiles::HasSnapshot(const std::string& id, uint64_t version) const {
  const absl::StatusOr<store::Journal> journal = ReadJournal(id);
  if (!journal.ok() || journal->head.version != version) return false;
  struct stat found = {};
  return version == 0 || (stat(SnapshotPath(id, version).c_str(), &found) == 0 &&
                          static_cast<uint64_t>(found.st_size) == journal->head.snapshot_bytes);
}

void SessionFiles::MoveToDamaged(const std::string& id) const {
  const absl::StatusOr<std::vector<std::string>> names = ListFileNames(path_);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name != id + kJournalEnd && name != id + kTextEnd && !NamesSnapshot(id, name)) continue;
    // If the move fails, the next start finds the file again.
    (void)rename(absl::StrCat(path_, "/", name).c_str(),
                 absl::StrCat(path_, "/damaged/", name).c_str());
  }
}

}  // namespace ovq::disk
