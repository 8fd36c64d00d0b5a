// Writes sessions to the session folder: journal entries, snapshots, and states that are swapped
// out. The changes that a caller is told of are on disk before the caller is told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/disk/session_folder.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/session.h"
#include "server/engine/common/session_image.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_table.h"

namespace ovq {

// Engine thread only. The folder's threads do the work; `then` runs on the engine thread. Without a
// folder there is nothing to write, and `then` runs at once.
class SessionPersistence {
 public:
  SessionPersistence(const EngineConfig& config, StatePool& pool, Admission& admission,
                     std::shared_ptr<Inbox> inbox, SessionTable& table)
      : config_(config),
        pool_(pool),
        admission_(admission),
        inbox_(std::move(inbox)),
        table_(table) {}

  // Writes new sessions, which callers don't see yet. image: a snapshot of each of them, or null if
  // their journals alone say everything.
  void Create(const std::vector<std::shared_ptr<Session>>& sessions,
              const std::shared_ptr<const SessionImage>& image, StatusCallback then);
  // Writes the changes since the last write: the tokens from `begin` on. DataLoss if that fails;
  // the session then goes on in memory.
  void Save(const std::shared_ptr<Session>& session, int64_t begin, StatusCallback then);
  // Writes a snapshot if a crash would leave too many tokens to be read again.
  void SnapshotIfDue(const std::shared_ptr<Session>& session);
  void Snapshot(const std::shared_ptr<Session>& session, StatusCallback then);
  void RemoveFiles(const Session& session, StatusCallback then);
  // The session's files are damaged: it leaves the table, and the folder keeps the files apart.
  void Quarantine(Session& session);

  // Writes an idle session's state to disk and frees its memory.
  void SwapOut(const std::shared_ptr<Session>& session);
  // Frees a state's memory. The disk has all that is needed to read it again.
  void DropState(Session& session);
  // The state of a busy session, which had consumed so many tokens, is gone: the session is idle
  // and on disk alone from now on, or it ends if the disk does not have all of it.
  void DropLostState(Session& session, int64_t consumed);

  // The session's image with its state, or without.
  SessionImage MakeImageHead(const Session& session) const;
  std::shared_ptr<SessionImage> MakeImage(const Session& session);

 private:
  // A callback that passes its status on to the engine thread, where `then` runs.
  StatusCallback OnEngineThread(StatusCallback then) const;
  JournalHead MakeJournalHead(const Session& session) const;
  SessionMark MakeMark(const Session& session) const;
  // Takes the session's unsaved tokens.
  JournalEntry MakeJournalEntry(Session& session, int64_t begin) const;

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  const std::shared_ptr<Inbox> inbox_;
  SessionTable& table_;
};

}  // namespace ovq
