// The parts of the engine that all operations on sessions work with, and the sessions themselves.
#pragma once

#include <memory>

#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/inbox.h"
#include "server/engine/common/session.h"
#include "server/engine/common/state_copies.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/sessions/session_persistence.h"
#include "server/engine/sessions/session_table.h"
#include "server/engine/sessions/session_turns.h"

namespace ovq::engine {

struct SessionCore {
  const EngineConfig& config;
  StatePool& pool;
  Admission& admission;
  RandomSource& random;
  const std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
  const StartRequest start = {};  // the engine's, for requests that operations on sessions make

  SessionTable table{config, pool, admission};
  SessionPersistence disk{config, pool, admission, inbox, table};
  SessionTurns turns{table, disk};
  StateCopies copies{config.options.copy_bytes_per_iteration, inbox, config.options.clock,
                     config.options.host_time};
};

}  // namespace ovq::engine
