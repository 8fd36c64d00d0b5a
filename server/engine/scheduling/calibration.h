// Measures what kinds of rows cost on the machine that the engine runs on.
#pragma once

#include "server/engine/common/engine_config.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/scheduling/batch_planner.h"
#include "server/engine/scheduling/executor.h"

namespace ovq::engine {

// Runs iterations of one kind of rows each, and tells `costs` what they took: for a tenth of a
// second or some iterations of a row, whichever is longer, and at most EngineOptions::calibration,
// but at least two iterations. Without memory for a state it measures nothing. Before there are
// requests.
void Calibrate(const EngineConfig& config, StatePool& pool, Executor& executor,
               BatchCostModel& costs);

}  // namespace ovq::engine
