// Swaps session states in from the session folder.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/request.h"
#include "server/engine/common/session.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_persistence.h"
#include "server/engine/sessions/session_table.h"
#include "server/engine/sessions/session_turns.h"

namespace ovq::engine {

struct SwappingSession;

// Engine thread only; the folder's threads read the files.
class SessionSwapIn {
 public:
  // start: the engine's, for requests that read the tokens which a state from disk lacks.
  SessionSwapIn(const EngineConfig& config, StatePool& pool, Admission& admission,
                std::shared_ptr<Inbox> inbox, StartRequest start, SessionTable& table,
                SessionPersistence& disk, SessionTurns& turns)
      : config_(config),
        pool_(pool),
        admission_(admission),
        inbox_(std::move(inbox)),
        start_(std::move(start)),
        table_(table),
        disk_(disk),
        turns_(turns) {}

  // Brings the state of a claimed session into memory, if it is on disk. ResourceExhausted: there
  // is no room. DataLoss: the files are damaged, and the session ends.
  void SwapIn(std::shared_ptr<Session> session, StatusCallback then);
  void AddTo(EngineStats& stats) const;

 private:
  absl::Status AcquirePlace(SwappingSession& swapping);  // memory for the state
  void ReadIntoPlace(std::shared_ptr<SwappingSession> swapping);
  void FinishReading(std::shared_ptr<SwappingSession> swapping);
  void StartReplay(std::shared_ptr<SwappingSession> swapping);
  // The request has read the tokens that the state lacked, or has failed.
  void EndReplay(Request& request, const SwappingSession& swapping, absl::Status status);

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  const std::shared_ptr<Inbox> inbox_;
  const StartRequest start_;
  SessionTable& table_;
  SessionPersistence& disk_;
  SessionTurns& turns_;
  int placed_ = 0;  // sessions published as hibernated whose states are being read into the pool
};

}  // namespace ovq::engine
