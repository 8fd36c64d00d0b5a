// The operations on sessions, wired together.
#pragma once

#include "server/engine/sessions/session_core.h"
#include "server/engine/sessions/session_create.h"
#include "server/engine/sessions/session_ownership.h"
#include "server/engine/sessions/session_pin.h"
#include "server/engine/sessions/session_removal.h"
#include "server/engine/sessions/session_rewind.h"
#include "server/engine/sessions/session_swap_in.h"

namespace ovq::engine {

struct SessionParts : SessionCore {
  SessionRemoval removal{*this};
  SessionSwapIn swap_in{*this};
  SessionOwnership ownership{*this, removal};
  SessionPins pins{*this, ownership, swap_in};
  SessionCreator creator{*this};
  SessionRewinder rewinder{*this};
};

}  // namespace ovq::engine
