// Defines SessionStore, which keeps sessions beyond the process: for each a journal, a snapshot of
// its state from which the journal continues, and maybe a text (docs/session-format.md). Several
// servers may share a store: at most one of them owns each session.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/store/journal.h"

namespace ovq::store {

// A session found in a store.
struct FoundSession {
  JournalHead head;
  uint64_t version = 0;
  SessionMark mark;
  size_t text_bytes = 0;  // of its text; 0: it has none
  size_t journal_bytes = 0;
  // Whether this acquisition still counts; null: it does. The listener may have been told that the
  // session is lost before the acquisition's callback was called.
  std::function<bool()> still_owned = {};
};

struct RecoveredSessions {
  std::vector<FoundSession> sessions;  // ordered by id
  // Why sessions were quarantined or, where they are not damaged, left alone; one text each.
  std::vector<std::string> damaged;
  size_t elsewhere = 0;  // number of sessions that other servers own
};

// Reports one finished operation.
struct StoreReport {
  // "append", "create", "snapshot", "remove", "read", "text"; "acquire", "release", "lease" of
  // stores that are reached over a network.
  const char* kind;
  uint64_t bytes = 0;
  absl::Duration duration = absl::ZeroDuration();  // from the request to its callback
  absl::Status status = {};  // Aborted or Unknown: a write without owning the session was refused
};
using Report = std::function<void(const StoreReport&)>;

// Reports an operation that is over; null: to nobody.
inline void ReportEnd(const Report& report, const char* kind, SteadyTime begin,
                      const absl::Status& status, uint64_t bytes = 0) {
  if (!report) return;
  report({.kind = kind,
          .bytes = bytes,
          .duration = TimeBetween(begin, std::chrono::steady_clock::now()),
          .status = status});
}

// Reports a change that is over, unless its kind is null, and tells its caller.
template <class Change>
void FinishChange(const Report& report, Change& change) {
  if (change.kind != nullptr) {
    ReportEnd(report, change.kind, change.begin, change.status, change.bytes);
  }
  if (change.done) change.done(std::move(change.status));
}

// Receives what other servers do to this one's sessions. Called on the store's threads.
struct OwnershipListener {
  // Another server asks for the session. Answer with SessionStore::Release or Decline; without an
  // answer it asks again.
  std::function<void(const std::string& id)> asked = {};
  // This server does not own the session any more, because it could not be heard of for so long
  // that another one has acquired it, or because the store has lost it. A write that is under way
  // then says itself whether it may count.
  std::function<void(const std::string& id)> lost = {};
  // This server has acquired a session whose owner ended, without anybody asking for it. It is told
  // before a call of Acquire for the session has its answer.
  std::function<void(FoundSession)> found = {};
};

// Reads a session's snapshot part by part. Its content stays as it was when it was opened, or
// reading it fails, also if another snapshot replaces it.
class SnapshotReader {
 public:
  virtual ~SnapshotReader() = default;
  virtual uint64_t bytes() const = 0;
  virtual uint64_t left() const = 0;
  // Reads the next bytes. DataLoss if the snapshot has fewer.
  virtual absl::Status Read(std::span<char> into) = 0;
};

// A session's journal and its opened snapshot, ready to be read.
struct StoredSession {
  std::string id;
  std::chrono::steady_clock::time_point begin;  // when it was asked for
  Journal journal = {};
  std::unique_ptr<SnapshotReader> snapshot = {};  // null for version 0

  uint64_t bytes() const {
    return journal.good_bytes + (snapshot == nullptr ? 0 : snapshot->bytes());
  }
};

// Thread-safe. Operations on one session run in the order of their calls. Callbacks run on the
// store's threads and may call its methods. A session is consistent at any moment, wherever a crash
// or a full disk interrupts a write. The destructor finishes pending operations first.
class SessionStore {
 public:
  using Done = std::function<void(absl::Status)>;
  using Acquired = std::function<void(absl::StatusOr<FoundSession>)>;
  // A MakeSnapshot passes the parts of a snapshot to `write`, on one of the store's threads, and
  // returns the status of the write.
  using WriteParts = std::function<absl::Status(const std::vector<std::string_view>& parts)>;
  using MakeSnapshot = std::function<absl::Status(const WriteParts& write)>;

  virtual ~SessionStore() = default;

  // --- Ownership ---

  // Call once, before anything else: acquires the sessions that no server owns, quarantines damaged
  // ones and removes what crashes left behind.
  virtual absl::StatusOr<RecoveredSessions> Recover() = 0;
  // Acquires a session, asking the server that owns it, if any, to release it. Errors: NotFound,
  // also for a session that the listener was told of before as found, which is here then;
  // FailedPrecondition if the session is in use, here or there, or of another version; Unavailable
  // if the other server does not answer; DataLoss if the session is damaged and was quarantined.
  // All name the session.
  virtual void Acquire(const std::string& id, Acquired done) = 0;
  virtual void SetListener(OwnershipListener listener) = 0;
  // Requires that no operation on the session is pending.
  virtual void Release(const std::string& id) = 0;
  virtual void Decline(const std::string& id) = 0;  // the session is in use
  // Keeps the session where people can look at it and no server finds it, and releases it.
  virtual void Quarantine(const std::string& id) = 0;
  virtual size_t owned() const = 0;  // number of sessions that this server owns
  // False if the sessions that this server owned may be another's meanwhile, because the store was
  // not heard of for too long. Then ConfirmOwnership asks the store, and tells the listener which
  // ones are lost before it calls `done`. Unavailable if the store cannot be asked.
  virtual bool sure_of_ownership() const = 0;
  virtual void ConfirmOwnership(Done done) = 0;

  // --- Sessions. Methods with an id or a head need a session that this server owns: they change
  // nothing and return Aborted if another server may own it. They return Unknown if one owns it now
  // and an earlier attempt of the call, which got no answer, may have been carried out before. ---

  // Stores a new session: empty before the entries, or with a snapshot (head.version > 0).
  virtual void Create(JournalHead head, std::vector<JournalEntry> entries, MakeSnapshot snapshot,
                      Done done) = 0;
  // Adds an entry to the session's journal, once, however often it had to be sent. After an error
  // the session is stored as it was before or, if the store could not be asked what became of the
  // entry, with it; it needs a Snapshot before the next Append, which has the entry either way.
  virtual void Append(const std::string& id, JournalEntry entry, Done done) = 0;
  // Replaces the snapshot and the journal. head.version is the number of changes that the snapshot
  // includes; the journal continues after them. OK without effect if the session was removed
  // meanwhile or has a snapshot of a later version.
  virtual void Snapshot(JournalHead head, MakeSnapshot snapshot, Done done) = 0;
  virtual void Remove(const std::string& id, Done done) = 0;
  // Gives the session a text, or another one; it ends with the session. OK without effect if the
  // session was removed meanwhile.
  virtual void PutText(const std::string& id, std::shared_ptr<const std::string> text,
                       Done done) = 0;
  virtual void RemoveText(const std::string& id) = 0;
  // NotFound without a text, DataLoss for a damaged one.
  virtual void ReadText(const std::string& id,
                        std::function<void(absl::StatusOr<std::string>)> done) = 0;
  // Opens a session. `opened` and work that it passes to Run read it; ReportRead then reports the
  // result.
  virtual void Read(const std::string& id,
                    std::function<void(absl::StatusOr<StoredSession>)> opened) = 0;
  virtual void ReportRead(const StoredSession& stored, const absl::Status& status) const = 0;
  virtual void Run(std::function<void()> work) = 0;  // on one of the store's threads
};

}  // namespace ovq::store
