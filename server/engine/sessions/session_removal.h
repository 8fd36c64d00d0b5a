// How sessions leave memory or end: deleted by a caller, expired, or evicted for others.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "server/engine/sessions/session_core.h"

namespace ovq::engine {

// Engine thread only.
class SessionRemoval {
 public:
  explicit SessionRemoval(SessionCore& core) : core_(core) {}

  // Deletes a session. A busy one keeps its memory until its request sees that it is deleted: so a
  // deletion pins nothing. It ends a running request instead of waiting for it, and a damaged
  // session, which nobody can claim; and it reads no state from disk to drop it.
  void Delete(const std::string& id, const std::optional<std::string>& tenant, SteadyTime called,
              StatusCallback then);
  void Expire(SteadyTime now);  // idle sessions only
  // Swaps idle sessions out until so many bytes of the pool are free. False if they are not.
  bool EvictIdleStates(size_t bytes);
  // Ends the client's idle session that was used least recently. With a session store its state is
  // swapped out instead, unless `table` says that a place in the table is needed. False without
  // such a session; true also if a turn has claimed it meanwhile, so that the next call finds
  // another.
  bool EvictFrom(const std::string& client, bool table);

 private:
  SessionCore& core_;
};

}  // namespace ovq::engine
