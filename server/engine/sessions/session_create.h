// Makes sessions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/session.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_persistence.h"
#include "server/engine/sessions/session_table.h"
#include "server/engine/sessions/session_turns.h"

namespace ovq::engine {

// Engine thread only.
class SessionCreator {
 public:
  SessionCreator(const EngineConfig& config, StatePool& pool, Admission& admission,
                 RandomSource& random, StartRequest start, SessionTable& table,
                 SessionPersistence& disk, SessionTurns& turns)
      : config_(config),
        pool_(pool),
        admission_(admission),
        random_(random),
        start_(std::move(start)),
        table_(table),
        disk_(disk),
        turns_(turns) {}

  // Opens a valid session that was called for at `called`, at once or not at all, and starts the
  // request that reads its prompt. Callers see the session when `done` is called: once the prompt
  // is read and, with a session folder, the session is on disk.
  void Create(SessionOptions options, SteadyTime called, SessionCallback done);
  // A session with a state and its share of the tenant's quota, which no caller sees yet.
  std::shared_ptr<Session> NewSession(const StateHandle& state, std::unique_ptr<QuotaHold> hold,
                                      const std::string& tenant, const std::string& key,
                                      absl::Duration ttl, bool keep_tokens);
  // Writes new sessions to disk, then shows them to callers and reports `event`. image: as in
  // SessionPersistence::Create.
  void PublishSessions(std::vector<std::shared_ptr<Session>> made,
                       const std::shared_ptr<const SessionImage>& image, const char* event,
                       SteadyTime since, SessionsCallback done);
  static SessionsCallback ForSingleSession(SessionCallback done);

 private:
  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  RandomSource& random_;
  const StartRequest start_;
  SessionTable& table_;
  SessionPersistence& disk_;
  SessionTurns& turns_;
};

}  // namespace ovq::engine
