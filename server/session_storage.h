// Opens the place where sessions are kept: --session-dir or --session-store.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/options.h"
#include "server/store/session_store.h"
#include "server/telemetry/log.h"
#include "server/telemetry/metrics.h"

namespace ovq::server {

// A place of sessions, and those found in it.
struct SessionStorage {
  std::shared_ptr<store::SessionStore> store;  // null without the two options
  store::RecoveredSessions found;
};

// Errors name the option.
absl::StatusOr<SessionStorage> OpenSessionStorage(const Options& options, Metrics& metrics,
                                                  Log& log);
// Registers the sessions that were found with the engine.
void AdoptSessions(const Options& options, store::RecoveredSessions found, engine::Engine& engine,
                   Log& log);

// Reads the keys that --fleet-key-file names; null without it.
absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> LoadNamedFleetKeys(const Options& options);
// Reads the key in --session-dir, which this or another server makes there, where none is named. A
// server that takes any state signs none.
absl::Status AddOwnFleetKey(const Options& options, engine::EngineOptions& engine_options);

// Reads the secrets of --session-store, for their errors, which name the option.
absl::Status CheckStoreSecrets(const Options& options);

}  // namespace ovq::server
