// Writes sessions to the session store: journal entries, snapshots and swapped-out states. A
// change is on disk before its caller gets the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/session.h"
#include "server/engine/common/session_image.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_table.h"
#include "server/store/session_store.h"

namespace ovq::engine {

// Engine thread only. The store's threads write; `then` runs on the engine thread. Without a
// store there is nothing to write, and `then` runs at once.
class SessionPersistence {
 public:
  SessionPersistence(const EngineConfig& config, StatePool& pool, Admission& admission,
                     std::shared_ptr<Inbox> inbox, SessionTable& table)
      : config_(config),
        pool_(pool),
        admission_(admission),
        inbox_(std::move(inbox)),
        table_(table) {}

  // Writes new sessions, which callers cannot see yet. `image` is the snapshot for each of them, or
  // null if a journal alone suffices.
  void Create(const std::vector<std::shared_ptr<Session>>& sessions,
              const std::shared_ptr<const SessionImage>& image, StatusCallback then);
  // Whether another server that found the session, whose state is in memory, in the store would end
  // it too early: a call that fails, for example, is a use that changes nothing.
  static bool UseIsUnsaved(const Session& session);
  // Writes the changes since the last write: the tokens from `begin` on; without any, the time of
  // this use if the store's is old. DataLoss if that fails; the session then continues in memory,
  // unless it is lost.
  void Save(const std::shared_ptr<Session>& session, int64_t begin, StatusCallback then);
  // Writes a snapshot if a restart after a crash would have to prefill too many tokens.
  void SnapshotIfDue(const std::shared_ptr<Session>& session);
  void Snapshot(const std::shared_ptr<Session>& session, StatusCallback then);
  void RemoveFiles(const Session& session, StatusCallback then);
  // Removes a session from the table that this server does not own any more.
  void Lose(Session& session);
  // Removes a session with damaged files from the table; the store quarantines the files.
  void Quarantine(Session& session);

  // Writes an idle session's state to disk and frees its memory.
  void SwapOut(const std::shared_ptr<Session>& session);
  // Frees a state's memory. The disk has everything needed to restore it.
  void DropState(Session& session);
  // Called when the state of a busy session, with this many consumed tokens, is lost: the session
  // becomes idle and swapped out, or is removed if the disk does not have all of it.
  void DropLostState(Session& session, int64_t consumed);

  // The session's image for another server; whole: with its state.
  SessionImage MakeExport(const Session& session, bool whole);
  // The session's image, without and with its state. A journal has its unfinished answer.
  SessionImage MakeImageHead(const Session& session) const;
  std::shared_ptr<SessionImage> MakeImage(const Session& session);

 private:
  // Wraps `then` so that it runs on the engine thread.
  StatusCallback OnEngineThread(StatusCallback then) const;
  // Whether a write that ended so found another owner; the session is lost then.
  bool IsLost(Session& session, const absl::Status& status);
  store::JournalHead MakeJournalHead(const Session& session) const;
  store::SessionMark MakeMark(const Session& session) const;
  // Moves the session's unsaved tokens into the entry.
  store::JournalEntry MakeJournalEntry(Session& session, int64_t begin) const;

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  const std::shared_ptr<Inbox> inbox_;
  SessionTable& table_;
};

}  // namespace ovq::engine
