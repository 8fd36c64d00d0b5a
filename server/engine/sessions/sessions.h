// The parts that keep sessions, wired together.
#pragma once

#include <memory>

#include "server/engine/sessions/session_create.h"
#include "server/engine/sessions/session_fork.h"
#include "server/engine/sessions/session_ownership.h"
#include "server/engine/sessions/session_persistence.h"
#include "server/engine/sessions/session_pin.h"
#include "server/engine/sessions/session_removal.h"
#include "server/engine/sessions/session_rewind.h"
#include "server/engine/sessions/session_swap_in.h"
#include "server/engine/sessions/session_table.h"
#include "server/engine/sessions/session_transfer.h"
#include "server/engine/sessions/session_turns.h"

namespace ovq::engine {

struct SessionParts {
  // start: the engine's, for requests that session operations make.
  SessionParts(const EngineConfig& config, StatePool& pool, Admission& admission,
               RandomSource& random,
               const std::shared_ptr<Inbox>& inbox = std::make_shared<Inbox>(),
               const StartRequest& start = {})
      : table(config, pool, admission),
        disk(config, pool, admission, inbox, table),
        turns(config, table, disk),
        removal(config, pool, table, disk),
        swap_in(config, pool, admission, inbox, start, table, disk, turns),
        ownership(config, admission, inbox, table, disk,
                  [this](SteadyTime now) { removal.Expire(now); }),
        pins(inbox, table, ownership, swap_in),
        creator(config, pool, admission, random, start, table, disk, turns),
        forks(config, pool, admission, inbox, table, disk, creator),
        rewinder(config, pool, admission, start, table, disk, turns),
        importer(config, pool, admission, start, table, disk, turns, creator) {}

  SessionTable table;
  SessionPersistence disk;
  SessionTurns turns;
  SessionRemoval removal;
  SessionSwapIn swap_in;
  SessionOwnership ownership;
  SessionPins pins;
  SessionCreator creator;
  SessionForks forks;
  SessionRewinder rewinder;
  SessionImporter importer;
};

}  // namespace ovq::engine
