// Makes sessions: new ones, of the images that other servers exported, and as copies of others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/engine/common/session_image.h"
#include "server/engine/sessions/session_core.h"
#include "server/engine/sessions/session_pin.h"

namespace ovq::engine {

// Engine thread only.
class SessionCreator {
 public:
  explicit SessionCreator(SessionCore& core) : core_(core) {}

  // Opens a valid session that was called for at `called`, at once or not at all, and starts the
  // request that reads its prompt. Callers see the session when `done` is called: once the prompt
  // is read and, with a session store, the session is on disk. image: fits one of the engine's
  // variants; the session has its state as it is, and reads the tokens that the state has not read.
  void Create(SessionOptions options, SteadyTime called, SessionCallback done,
              std::shared_ptr<const SessionImage> image = nullptr);
  // Makes copies of a session with its state and its pending token: all or none. Memory for them is
  // acquired now; their bytes are copied over several iterations, during which the session is busy.
  void Fork(std::shared_ptr<PinnedSession> session, const ForkOptions& options, SteadyTime called,
            SessionsCallback done);

 private:
  struct Forking;

  // Gives the request a session that no caller sees yet.
  absl::Status MakeSession(Request& request, const SessionOptions& options,
                           const SessionImage* image);
  std::shared_ptr<Session> NewSession(const StateHandle& state, std::unique_ptr<QuotaHold> hold,
                                      const Request& request, const std::string& key,
                                      absl::Duration ttl, bool keep_tokens);
  // Writes new sessions to disk, then shows them to callers and reports `event`. image: as in
  // SessionPersistence::Create.
  void PublishSessions(std::vector<std::shared_ptr<Session>> made,
                       const std::shared_ptr<const SessionImage>& image, const char* event,
                       SteadyTime since, SessionsCallback done);

  absl::Status AcquireStates(Forking& fork);
  bool CopyState(Forking& fork, size_t& bytes);  // StateCopies::CopyOne
  void EndFork(Forking& fork, absl::Status status);
  std::vector<std::shared_ptr<Session>> MakeCopies(Forking& fork);

  SessionCore& core_;
};

}  // namespace ovq::engine
