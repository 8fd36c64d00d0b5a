// Reads and makes files of fleet keys (docs/security.md).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/engine/common/fleet_keys.h"

namespace ovq::server {

// InvalidArgument for a file that others than its owner and its group may read, or others than its
// owner may write; the errors of ReadFile and FleetKeys::Parse. Every error names the file.
absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> LoadFleetKeys(const std::string& path);

// Loads fleet.key in the folder. Makes it first, with one random key and for its owner alone, if it
// is missing: once, also where several servers start together.
absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> FleetKeysIn(const std::string& folder);

}  // namespace ovq::server
