// Takes sessions back to earlier positions.
#pragma once

#include <cstdint>
#include <memory>

#include "server/engine/sessions/session_core.h"
#include "server/engine/sessions/session_pin.h"

namespace ovq::engine {

// Engine thread only.
class SessionRewinder {
 public:
  explicit SessionRewinder(SessionCore& core) : core_(core) {}

  // Takes a session back to what it was at an earlier position, or (dry_run) says what that takes.
  // Starts a request that reads the tokens since the last checkpoint again. A failed rewind leaves
  // the session as it was.
  void Rewind(std::shared_ptr<PinnedSession> pin, const RewindOptions& options,
              std::shared_ptr<CancelSignal> cancel, SteadyTime called, RewindCallback done);

 private:
  // Brings the state to its last checkpoint at `consumed` tokens or earlier. `before` gets the
  // state as it was if tokens are to be read again, otherwise it has its position alone.
  absl::Status RestoreCheckpoint(Session& session, int64_t consumed, bool replays,
                                 StateSnapshot& before);
  void CommitRewind(Request& request, int64_t position, RewindCallback done);
  // Where the system has no memory for the old state, the session is as DropLostState leaves it.
  void RestoreAfterFailedRewind(Session& session, const StateSnapshot& before);

  SessionCore& core_;
};

}  // namespace ovq::engine
