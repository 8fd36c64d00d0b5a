// Copies sessions.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_create.h"
#include "server/engine/sessions/session_pin.h"

namespace ovq::engine {

// Engine thread only.
class SessionForks {
 public:
  SessionForks(const EngineConfig& config, StatePool& pool, Admission& admission,
               std::shared_ptr<Inbox> inbox, SessionTable& table, SessionPersistence& disk,
               SessionCreator& creator)
      : config_(config),
        pool_(pool),
        admission_(admission),
        inbox_(std::move(inbox)),
        table_(table),
        disk_(disk),
        creator_(creator) {}

  // Makes copies of a session with its state and its pending token: all or none. Memory for them is
  // acquired now; their bytes are copied over several iterations, during which the session is busy.
  void Fork(std::shared_ptr<PinnedSession> session, const ForkOptions& options, SteadyTime called,
            SessionsCallback done);

 private:
  struct Forking;

  absl::Status AcquireStates(Forking& fork);
  void CopyStates();  // copy_bytes_per_iteration of them; posts itself for the rest
  void EndFork(Forking& fork, absl::Status status);
  std::vector<std::shared_ptr<Session>> MakeCopies(Forking& fork);

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  const std::shared_ptr<Inbox> inbox_;
  SessionTable& table_;
  SessionPersistence& disk_;
  SessionCreator& creator_;
  std::deque<std::shared_ptr<Forking>> forks_;  // in order of arrival
};

}  // namespace ovq::engine
