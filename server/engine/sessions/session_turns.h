// Recording of running requests in their sessions: checkpoints, progress, damage and turn ends.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/engine/common/request.h"
#include "server/engine/common/session.h"
#include "server/engine/sessions/session_persistence.h"
#include "server/engine/sessions/session_table.h"

namespace ovq::engine {

// Engine thread only.
class SessionTurns {
 public:
  SessionTurns(SessionTable& table, SessionPersistence& disk) : table_(table), disk_(disk) {}

  // Makes a checkpoint after an iteration if one is due; `left` tokens of the prompt remain.
  void CheckpointIfDue(Session& session, int64_t left);
  // Records the end of a turn that drew `generated` tokens, with a checkpoint if it is worth one.
  void RecordTurnEnd(Session& session, int64_t generated);
  void PublishProgress(Request& request);  // of a turn's request
  // Marks a busy session's state as unusable from this position on: callers can only view and
  // delete the session. The disk keeps the session as its last turn left it.
  void SetDamaged(Session& session, int64_t position, std::string_view damage);
  // Ends the turn of a request. When `then` runs, the session is idle again, or gone if it was
  // deleted meanwhile. DataLoss if the turn's tokens could not be written to disk.
  void EndTurn(Request& request, StatusCallback then);

 private:
  void KeepCheckpoint(Session& session);

  SessionTable& table_;
  SessionPersistence& disk_;
};

}  // namespace ovq::engine
