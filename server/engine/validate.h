// Checks of what callers ask, before anything is queued. Pure functions; every message names the
// field.
#pragma once

#include "absl/status/status.h"
#include "server/engine/engine.h"

namespace ovq {

// All but what depends on the session.
absl::Status ValidateGenerate(const EngineModel& model, const EngineOptions& options,
                              const GenerateRequest& request);
absl::Status ValidateScore(const EngineModel& model, const EngineOptions& options,
                           const ScoreRequest& request);
absl::Status ValidateSession(const EngineModel& model, const EngineOptions& options,
                             const SessionOptions& session);
// OutOfRange if full-attention layers have no room for `position` tokens.
absl::Status CheckPosition(const StateLayout& layout, int64_t position);

}  // namespace ovq
